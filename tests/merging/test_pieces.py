"""Layers read in pieces give, bit by bit, what whole layers give; parts of files are read where they are."""

from functools import partial

import pytest
import torch

from engine.catalog.transforms import EntryPruningParams, LwptvParams
from engine.errors import CheckpointError
from engine.merging import entry_pruning, sums
from engine.merging.assemble import COLUMNS, flat, in_pieces, pieces, total
from engine.merging.chance import bernoulli, uniform
from engine.merging.entry_pruning import magnitude, pwptv
from engine.merging.lwptv import lwptv, salience
from engine.merging.selection import order_statistics
from engine.pipeline.run.weights_only import WeightsOnly
from engine.weights import LazyTaskVectors, Memory, open_weights, write_weights
from engine.weights.parts import open_parts

SHAPES = {"wide": (3, COLUMNS), "odd": (COLUMNS + 7,), "small": (5, 4), "scalar": (), "empty": (0, 3)}
EXPERTS = 8


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    generator = torch.Generator().manual_seed(0)
    base = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    write_weights(folder / "base.safetensors", Memory(base))
    paths = []
    for number in range(EXPERTS):
        moved = {name: value + 0.01 * torch.randn(value.shape, generator=generator) for name, value in base.items()}
        paths.append(folder / f"expert{number}.safetensors")
        write_weights(paths[-1], Memory(moved))
    return folder / "base.safetensors", paths


def vectors(files, weights=None, dtype=torch.float32):
    base, paths = files
    return LazyTaskVectors(open_weights(base), {path.stem: open_weights(path) for path in paths}, weights, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weights", [None, [1, -0.5, 0, 1, 2, 1, 1, 1]])
def test_pieces_are_the_stack(files, dtype, weights):
    lazy = vectors(files, weights, dtype)
    for name in lazy.names:
        found = [piece.clone() for piece in pieces(lazy, name)]
        assert all(piece.shape[1] <= COLUMNS for piece in found)
        assert torch.equal(torch.cat([*found, torch.empty(EXPERTS, 0, dtype=dtype)], dim=1), flat(lazy.stack(name)))
    whole = flat(lazy.stack("odd"))
    some = [piece.clone() for piece in pieces(lazy, "odd", 1000, 5, 3)]
    assert torch.equal(some[1], whole[:, 8_000:9_000])
    assert [piece.shape[1] for piece in some] == [1000] * 3  # of 17 pieces those from the 4th on, every fifth


def test_sums_and_means_are_those_of_whole_layers_bit_by_bit(files):
    lazy = vectors(files)
    for name in lazy.names:
        assert torch.equal(total(lazy, name), lazy.stack(name).sum(dim=0))
        assert torch.equal(in_pieces(lazy, name, lambda piece: piece.mean(dim=0)), lazy.stack(name).mean(dim=0))


def test_lwptv_knows_the_sums_of_the_layers_it_keeps(files, monkeypatch):
    lazy = vectors(files)
    changed = lwptv(None, lazy, LwptvParams(eta=0.4), WeightsOnly(lazy.experts))
    kept = [name for name in lazy.names if name not in changed.pruned]
    assert set(changed.totals) == set(kept)
    for name in lazy.names:
        found = total(changed, name)
        assert torch.equal(found, changed.stack(name).sum(dim=0))
        found.zero_()
    assert kept[0] not in changed.totals, "a sum is handed out once"
    assert torch.equal(total(changed, kept[0]), lazy.stack(kept[0]).sum(dim=0)), "and then made again"
    monkeypatch.setattr(sums, "BLOCK", 30)
    small = lwptv(None, lazy, LwptvParams(eta=0), WeightsOnly(lazy.experts))
    assert all(torch.equal(total(small, name), lazy.stack(name).sum(dim=0)) for name in lazy.names)
    monkeypatch.setattr(sums, "KEPT", 30)
    limited = lwptv(None, lazy, LwptvParams(eta=0), WeightsOnly(lazy.experts))
    assert set(limited.totals) == {"small", "scalar", "empty"}


def test_salience_is_that_of_whole_layers_bit_by_bit(files):
    lazy = vectors(files)
    names, scores = salience(lazy)
    for column, name in enumerate(names):
        stack = flat(lazy.stack(name))
        parts = (stack - stack.mean(dim=0)).abs_().split(COLUMNS, dim=1)
        expected = sum(part.sum(dim=1).double() for part in parts).numpy() / max(stack.shape[1], 1)
        assert (scores[:, column] == expected).all()


def test_pwptv_in_pieces_prunes_the_same_entries(files):
    lazy = vectors(files)
    changed = pwptv(None, lazy, EntryPruningParams(eta=0.7), WeightsOnly(lazy.experts))
    for name in lazy.names:
        assert torch.equal(total(changed, name), changed.stack(name).sum(dim=0))
    scores = torch.cat([(flat(s) - flat(s).mean(dim=0)).abs_() for s in map(lazy.stack, lazy.names)], dim=1)
    limits = scores.kthvalue(int(scores.shape[1] * 0.7) + 1, dim=1).values
    expected = lazy.stack("odd")
    expected *= ((expected - expected.mean(dim=0)).abs() > limits[:, None]).any(dim=0)
    assert torch.equal(changed.stack("odd"), expected)


@pytest.mark.parametrize("prune", [pwptv, magnitude])
@pytest.mark.parametrize("eta", [0.05, 0.7, 0.9])
def test_pruned_sums_are_known_from_the_pass_that_finds_the_limits(files, monkeypatch, prune, eta):
    monkeypatch.setattr(entry_pruning, "order_statistics", partial(order_statistics, sample=2000))
    lazy = vectors(files)
    changed = prune(None, lazy, EntryPruningParams(eta=eta), WeightsOnly(lazy.experts))
    assert set(changed.totals) == set(lazy.names)
    for name in lazy.names:
        known = total(changed, name).clone()
        assert torch.equal(known, changed.stack(name).sum(dim=0))
        assert torch.equal(total(changed, name), known), "made again, from the pieces"


@pytest.mark.parametrize("limit", ["OPEN", "KEPT"])
def test_sums_that_cannot_be_known_are_made_from_the_pieces(files, monkeypatch, limit):
    monkeypatch.setattr(entry_pruning, "order_statistics", partial(order_statistics, sample=2000))
    lazy = vectors(files)
    params = EntryPruningParams(eta=0.7)
    known = pwptv(None, lazy, params, WeightsOnly(lazy.experts))
    monkeypatch.setattr(entry_pruning if limit == "OPEN" else sums, limit, 30)
    limited = pwptv(None, lazy, params, WeightsOnly(lazy.experts))
    assert set(limited.totals) == (set() if limit == "OPEN" else {"small", "scalar", "empty"})
    for name in lazy.names:
        assert torch.equal(total(limited, name), total(known, name))


@pytest.mark.parametrize("keep", [0.0, 0.1, 1 / 3, 0.5, 1 - 0.9, 1.0])
@pytest.mark.parametrize("shape", [(), (0, 2), (300, 70)])
def test_random_masks_are_those_of_a_comparison_in_torch(keep, shape):
    assert torch.equal(bernoulli(keep, shape, 3, "dare", "x"), uniform(shape, 3, "dare", "x") < keep)


@pytest.mark.parametrize("misleading", [False, True])
def test_order_statistics_are_exact_whatever_the_first_sample_says(misleading):
    numbers = torch.randn(2, 5000, generator=torch.Generator().manual_seed(1))

    def pieces(step):
        shift = 100 if misleading and step > 1 else 0
        return (piece + shift for piece in numbers.split(9, dim=1)[::step])

    found = order_statistics(pieces, 5000, [3500], 500)
    assert torch.equal(found[0], numbers.kthvalue(3500, dim=1).values)


def test_parts_of_a_file_that_changed_are_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    write_weights(path, Memory({"w": torch.arange(6.0)}))
    weights, out = open_weights(path), torch.empty(2)
    with open_parts(weights, "w", torch.float32) as read:
        read(3, out.view(torch.uint8).numpy())
    assert out.tolist() == [3, 4]
    write_weights(path, Memory({"w": torch.zeros(6)}))
    with pytest.raises(CheckpointError, match="changed while it was in use"):
        list(LazyTaskVectors(weights, {"x": weights}).pieces("w", 2))
