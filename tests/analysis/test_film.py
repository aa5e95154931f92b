"""The map of a film and the bytes that it is kept in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from engine.analysis.film import MISSING, NO_SHIFT, Grid, fit_map, pack_shift
from engine.errors import RecipeError

NUMBERS = st.floats(-1e4, 1e4, allow_nan=False, width=32)


@given(arrays(np.float64, (7, 2), elements=NUMBERS))
def test_a_packed_point_is_at_most_half_a_step_away(points):
    grid = Grid.around([points])
    span = np.ptp(points, axis=0).max()
    assert grid.step <= max(span, 1e-9) / 65_000
    packed = grid.pack(points)
    assert packed.dtype == np.int16
    assert (packed != MISSING).all()
    assert np.abs(grid.unpack(packed) - points).max() <= grid.step / 2 + 1e-9 * max(1.0, np.abs(points).max())


def test_what_is_missing_stays_missing():
    points = np.array([[0.0, 1.0], [np.nan, np.nan], [2.0, -1.0]])
    grid = Grid.around([points])
    packed = grid.pack(points)
    assert (packed[1] == MISSING).all()
    assert np.isnan(grid.unpack(packed)[1]).all()
    steps, unit = pack_shift(np.array([0.0, 3.0, np.nan]))
    assert steps.tolist() == [0, NO_SHIFT - 1, NO_SHIFT]
    assert steps[1] * unit == pytest.approx(3.0)


def test_principal_components_place_every_feature_exactly():
    generator = np.random.default_rng(0)
    anchors, others = generator.normal(size=(40, 6)), generator.normal(size=(5, 6))
    place, facts = fit_map(anchors)
    centred = anchors - anchors.mean(axis=0)
    axes = np.linalg.svd(centred)[2][:2]
    expected = (others - anchors.mean(axis=0)) @ axes.T
    placed = place(others)
    signs = np.sign((placed * expected).sum(axis=0))
    assert placed * signs == pytest.approx(expected, abs=1e-9)
    shares = 100 * np.linalg.svd(centred)[1][:2] ** 2 / (centred**2).sum()
    assert facts["explained_variance"] == pytest.approx(shares)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tsne", "umap"])
def test_what_a_map_was_not_fitted_to_lands_among_its_own_kind(method):
    """Three clusters; other points of each are placed beside it, alike whatever is placed with them."""
    random = np.random.default_rng(4)
    centres = 12 * random.standard_normal((3, 8))
    kind = np.repeat(np.arange(3), 40)
    anchors, others = (centres[kind] + random.standard_normal((120, 8)) for _ in range(2))
    place, facts = fit_map(anchors.astype(np.float32), method, seed=3)
    assert facts["seed"] == 3
    known, placed = place(anchors.astype(np.float32)), place(others.astype(np.float32))
    assert placed.shape == (120, 2)
    assert np.isfinite(placed).all()
    middles = np.stack([known[kind == number].mean(axis=0) for number in range(3)])
    nearest = np.linalg.norm(placed[:, None] - middles[None], axis=2).argmin(axis=1)
    assert (nearest == kind).mean() > 0.95
    np.testing.assert_allclose(place(others.astype(np.float32)), placed)
    if method == "tsne":
        np.testing.assert_array_equal(place(others[:10].astype(np.float32)), placed[:10])


def test_too_few_anchors_are_refused():
    with pytest.raises(RecipeError, match="3 points"):
        fit_map(np.zeros((3, 6)))
    with pytest.raises(RecipeError, match="10 points"):
        fit_map(np.zeros((10, 6)), "umap", neighbours=15)
    with pytest.raises(RecipeError, match="15 points"):
        fit_map(np.zeros((15, 6)), "tsne", neighbours=15)
