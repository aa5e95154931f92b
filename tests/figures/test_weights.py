"""Figures of weights: measures by hand, layers in order of depth, missing values, words and tables."""

import math

import numpy as np
import pytest

from engine.analysis.spectra import effective_rank, energy_rank, stable_rank
from engine.figures.coefficients import amplification_table, coefficient_figure, learned_coefficients
from engine.figures.interpolation import MEAN, POSITION, barrier_table, path_figure
from engine.figures.palette import PURPLE_ORANGE, STATES
from engine.figures.spectra import rank_figure, spectrum_figure
from engine.figures.weight_measures import GEOMETRY, KEPT, conflicts, cosines, totals
from engine.figures.weights import fate_bars, layer_figure, pair_matrix
from engine.recipe import MethodCall
from engine.report import MergedPart
from tests.made_run import LAYERS, made_report

TITLES = ["Digits", "<b>Signs</b>"]
ARRAYS = {
    "inner": np.array([[[9.0, 3.0], [3.0, 4.0]], [[16.0, 0.0], [0.0, 0.0]]]),
    "signed": np.array([[[10.0, 2.0], [2.0, 8.0]], [[4.0, 0.0], [0.0, 0.0]]]),
    "both": np.array([[[10.0, 8.0], [8.0, 8.0]], [[4.0, 0.0], [0.0, 0.0]]]),
    "elected": np.array([[6.0, 5.0], [4.0, 0.0]]),
    "absolute": np.array([[6.0, 4.0], [8.0, 0.0]]),
    "absolute_sum": np.array([7.0, 8.0]),
    "base": np.array([36.0, 0.0]),
    "size": np.array([10.0, 4.0]),
}
SUMS = {
    "moved": np.array([[10.0, 8.0], [4.0, 0.0]]),
    "zeroed": np.array([[2.0, 2.0], [4.0, 0.0]]),
    "same": np.array([[6.0, 4.0], [0.0, 0.0]]),
    "flipped": np.array([[2.0, 2.0], [0.0, 0.0]]),
    "kept_square": np.array([[4.0, 1.0], [0.0, 0.0]]),
    "square": np.array([[9.0, 4.0], [16.0, 0.0]]),
    "inner": np.array([[2.7, 2.0], [0.0, 0.0]]),
    "merged_square": np.array([[1.0, 1.0], [0.0, 0.0]]),
}
NAMES = ["visual.transformer.resblocks.0.ln_1.weight", "visual.conv1.weight"]  # the second one comes first


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("relative", [[50, 100 / 3], [np.nan, np.nan]]),
        ("norm", [[3, 2], [4, 0]]),
        ("rms", [[math.sqrt(0.9), math.sqrt(0.4)], [2, 0]]),
        ("cosine", [[0.5, 0.5], [np.nan, np.nan]]),
        ("elected", [[60, 62.5], [100, np.nan]]),
        ("conflict", [[37.5, 37.5], [np.nan, np.nan]]),
        ("cancelled", [[30], [0]]),
    ],
)
def test_geometry_by_hand(name, expected):
    np.testing.assert_allclose(GEOMETRY[name].compute(ARRAYS), expected)


@pytest.mark.parametrize(
    ("name", "expected", "total"),
    [
        ("coefficient", [[0.3, 0.5], [0, np.nan]], [2.7 / 25, 0.5]),
        ("kept_norm", [[200 / 3, 50], [0, np.nan]], [40, 50]),
        ("zeroed", [[20, 25], [100, np.nan]], [600 / 14, 25]),
        ("flipped", [[20, 25], [0, np.nan]], [200 / 14, 25]),
        ("cosine", [[0.9, 1.0], [np.nan, np.nan]], [2.7 / 5, 1.0]),
    ],
)
def test_what_is_kept_by_hand(name, expected, total):
    np.testing.assert_allclose(KEPT[name].compute(SUMS), expected)
    np.testing.assert_allclose(totals(SUMS, KEPT[name]), total)


def test_pairs_are_symmetric_and_one_expert_has_no_others():
    assert cosines(ARRAYS)[0, 0, 1] == cosines(ARRAYS)[0, 1, 0] == 0.5
    assert conflicts(ARRAYS)[0, 0, 1] == 37.5
    alone = {name: values[..., :1, :1] if values.ndim == 3 else values for name, values in ARRAYS.items()}
    assert np.isnan(GEOMETRY["cosine"].compute({**alone, "elected": ARRAYS["elected"][:, :1]})).all()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_layers_come_in_order_of_depth_with_words_and_a_table(theme):
    drawing = layer_figure(ARRAYS, NAMES, TITLES, GEOMETRY["norm"], theme)
    assert drawing.table["layer"].tolist() == NAMES[::-1]
    assert drawing.table["Digits"].tolist() == [4, 3]
    assert drawing.figure.data[0].z[0].tolist() == [4, 3]
    assert drawing.figure.data[0].y[1] == "&lt;b&gt;Signs&lt;/b&gt;"
    assert "Over all layers: Digits 5.000" in drawing.alt
    together = layer_figure(ARRAYS, NAMES, TITLES, GEOMETRY["cancelled"], theme)
    assert list(together.figure.data[0].y) == ["All experts"]
    assert layer_figure(ARRAYS, NAMES, TITLES, GEOMETRY["norm"], theme, components=["Norm"]).table.shape[0] == 1


def test_columns_named_like_the_tables_own_do_not_collide():
    table = layer_figure(ARRAYS, NAMES, ["layer", "component"], GEOMETRY["norm"], "light").table
    assert list(table.columns) == ["layer", "component", "layer (expert)", "component (expert)"]


def test_a_matrix_of_pairs_says_which_is_highest_and_can_be_of_one_layer():
    whole = pair_matrix(ARRAYS, TITLES, "cosine", "light")
    assert whole.table.loc[0, TITLES[1]] == pytest.approx(3 / (5 * 2))
    assert np.isnan(whole.table.loc[0, "Digits"])
    assert "<b>Signs</b> and Digits, 0.300" in whole.alt
    assert pair_matrix(ARRAYS, TITLES, "cosine", "light", [0]).table.loc[0, TITLES[1]] == pytest.approx(0.5)
    assert pair_matrix(ARRAYS, TITLES, "conflict", "dark").table.loc[1, "Digits"] == pytest.approx(37.5)
    still = {name: np.zeros_like(values) for name, values in ARRAYS.items()}
    assert pair_matrix(still, TITLES, "cosine", "light").alt.endswith("for 1 pairs of experts.")


@pytest.mark.parametrize(("cosine", "reach"), [(0.04, 0.3), (-0.04, 0.3), (0.9, 0.9)])
def test_a_small_cosine_has_no_full_colour(cosine, reach):
    inner = np.array([[[1.0, cosine], [cosine, 1.0]]])
    heatmap = pair_matrix({**ARRAYS, "inner": inner}, TITLES, "cosine", "light").figure.data[0]
    assert (heatmap.zmin, heatmap.zmax) == (-reach, reach)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_signs_have_the_colours_of_signs_and_of_no_state(theme):
    bars = {bar.name: bar.marker.color for bar in fate_bars(SUMS, TITLES, theme).figure.data}
    assert (bars["Flipped"], bars["Same sign"]) == (PURPLE_ORANGE[theme][0], PURPLE_ORANGE[theme][-1])
    assert not set(bars.values()) & set(STATES[theme].values())


def test_fates_add_up_to_everything():
    table = fate_bars(SUMS, TITLES, "light").table
    np.testing.assert_allclose(table.drop(columns="expert").sum(axis=1), 100)
    assert table.loc[0, "zeroed_percent"] == pytest.approx(600 / 14)


def test_ranks_by_hand():
    assert effective_rank([1, 1, 1, 0]) == pytest.approx(3)
    assert effective_rank([3, 1]) == pytest.approx(4 / 3**0.75)
    assert effective_rank([0, 0]) == 0
    assert energy_rank([4, 1, 0.1]) == 1
    assert energy_rank([1, 1, 1, 1], 0.5) == 2
    assert energy_rank([0.0]) == 0
    assert stable_rank([2, 1]) == pytest.approx(1.25)


def test_spectra_are_shown_for_every_model():
    spectra = {"digits/visual.proj": np.array([2.0, 1.0]), "merged/visual.proj": np.array([0.0, 0.0])}
    models, titles = ["digits", "merged"], ["Digits", "Merged"]
    ranks = rank_figure(spectra, ["visual.proj"], models, titles, "stable", "light", relative=False)
    assert ranks.table[["Digits", "Merged"]].iloc[0].tolist() == [1.25, 0]
    lines = spectrum_figure(spectra, "visual.proj", models, titles, "dark")
    assert lines.figure.data[0].y.tolist() == [1, 0.5]
    assert np.isnan(lines.figure.data[1].y).all()
    energy = spectrum_figure(spectra, "visual.proj", models, titles, "dark", cumulative=True)
    np.testing.assert_allclose(energy.figure.data[0].y, [80, 100])


def learned_report(transforms=(), values=None, **details):
    values = values or {"digits": [0.2] * 5, "signs": [0.4] * 5}
    report = made_report()
    merge = MethodCall(method="adamerging", params={"granularity": "layer"})
    recipe = report.recipe.model_copy(update={"merge": merge, "transforms": transforms})
    part = report.salience.model_copy(update={"applied": bool(transforms)})
    merged = MergedPart(kind="static", details={"coefficients": values, "layers": list(LAYERS), **details})
    return report.model_copy(update={"recipe": recipe, "merged": merged, "salience": part})


def test_coefficients_behind_lwptv_are_scaled_and_pruned_layers_have_none():
    lwptv = MethodCall(method="lwptv", params={"eta": 0.5})
    plain, behind = (
        learned_coefficients(learned_report()),
        learned_coefficients(learned_report((lwptv,), {"digits": [0.3] * 5, "signs": [0.3] * 5})),
    )
    assert learned_coefficients(made_report()) is None
    assert plain.pruned_by is None
    np.testing.assert_allclose(behind.used[0], [0.15, 0.15, np.nan, np.nan, np.nan])
    table = amplification_table(behind, plain, ["Digits", "Signs"])
    np.testing.assert_allclose(table["ratio"], [1.5, 0.75])
    drawing = coefficient_figure(behind, ["Digits", "Signs"], "light", used=True, limits=(0, 1))
    assert (drawing.figure.data[0].zmin, drawing.figure.data[0].zmax) == (0, 1)
    assert "Digits 0.15" in drawing.alt


def test_task_wise_coefficients_are_bars():
    learned = learned_coefficients(learned_report(values={"digits": 0.2, "signs": 0.5}, layers=[]))
    drawing = coefficient_figure(learned, ["Digits", "Signs"], "light")
    assert drawing.table["coefficient"].tolist() == [0.2, 0.5]
    assert drawing.figure.data[0].type == "bar"


def test_paths_have_a_mean_and_barriers_even_of_a_task_called_alpha():
    values = {"accuracy": [50.0, 20.0, 90.0], "loss": [1.0, 2.0, 0.5], "barrier": 1.25, "images": 10, "available": 40}
    document = {"alphas": [0, 0.5, 1], "tasks": {"alpha": values, "mean": {**values, "accuracy": [30.0, 40.0, 50.0]}}}
    titles = {"alpha": "alpha", "mean": "mean"}
    drawing = path_figure(document, titles, ("Pretrained", "Merged"), "accuracy", "light")
    assert list(drawing.table.columns) == [POSITION, "alpha", "mean", MEAN]
    assert drawing.table[MEAN].tolist() == [40, 30, 70]
    assert "half-way 30.0 %" in drawing.alt
    even = {"alphas": [0, 0.25, 0.75, 1], "tasks": {"alpha": {"accuracy": [0, 30, 60, 90]}}}
    assert "half-way 45.0 %" in path_figure(even, titles, ("Pretrained", "Merged"), "accuracy", "light").alt
    table = barrier_table(document, titles)
    assert table.loc[0, ["start", "end", "lowest", "highest", "barrier", "images"]].tolist() == [
        50,
        90,
        20,
        90,
        1.25,
        10,
    ]
