"""Experts of another base: aligned by the command, found again where an order was planted, else refused."""

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from engine.alignment.methods import check_same_function, reordered
from engine.alignment.symmetry import random_permutations
from engine.alignment.transformer import transformer_symmetry, unfolded
from engine.catalog import ALIGNMENTS
from engine.errors import AlignmentError, EngineError, RecipeError
from engine.manifest import read_manifest
from engine.pipeline.local import run_recipe
from engine.pipeline.run.encoding import encoder_of
from engine.pipeline.run.findings import findings
from engine.pipeline.zoos.align import align_experts
from engine.recipe import parse_recipe
from engine.zoo.folder import Zoo
from tests.tiny_zoo import CONFIG, make_zoo

SYMMETRY = transformer_symmetry(CONFIG)


def shuffled(tensors, seed):
    own = {name.removeprefix("visual."): tensor for name, tensor in tensors.items()}
    orders = random_permutations(SYMMETRY, unfolded(own), seed)
    return {f"visual.{name}": t.contiguous() for name, t in reordered(own, SYMMETRY, orders).items()}


def with_base(zoo, **changes):
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    document["experts"][0] |= {"base": "theirs.safetensors", **changes}
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))


@pytest.fixture
def zoo(tmp_path):
    """The first expert, and the base that it starts from, have their units in another order."""
    folder = make_zoo(tmp_path / "tiny")
    expert = folder / "experts" / "alpha.safetensors"
    save_file(load_file(expert), folder / "untouched.safetensors")
    for source, target in ((expert, expert), (folder / "base.safetensors", folder / "theirs.safetensors")):
        save_file(shuffled(load_file(source), seed=3), target)
    with_base(folder)
    return folder


@pytest.mark.parametrize(
    ("method", "by"), [("weight_matching", "base"), ("weight_matching", "expert"), ("activation_matching", "base")]
)
def test_a_planted_order_is_found(method, by, command, zoo):
    code, out, err = command("zoo", "align", zoo, "--method", method, "--param", f"by={by}")
    assert (code, err) == (0, "")
    assert "alpha: inner product" in out
    expert = read_manifest(zoo).expert_table["alpha"]
    assert (expert.weights, expert.aligned) == ("aligned/alpha.safetensors", method)
    found, wanted = load_file(zoo / expert.weights), load_file(zoo / "untouched.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    assert command("zoo", "check", zoo)[0] == 0
    code, _, err = command("zoo", "align", zoo)
    assert code == 1
    assert "nothing to align" in err


def test_merges_gain_from_it_and_say_where_it_is_missing(zoo, store):
    recipe = parse_recipe({"zoo": str(zoo), "experts": ["alpha", "beta"]})
    (found,) = findings(recipe, Zoo.open(str(zoo)))
    assert (found.level, "alpha starts from another base (theirs.safetensors)" in found.text) == ("error", True)
    with pytest.raises(RecipeError, match="zoo align tiny --expert alpha"):
        run_recipe(recipe, store)
    align_experts(str(zoo), "as_it_is", {}, called="unmatched")
    before = run_recipe(parse_recipe({"zoo": str(zoo), "experts": ["alpha-unmatched", "beta"]}), store)
    align_experts(str(zoo), "weight_matching", {}, names=["alpha"])
    assert findings(recipe, Zoo.open(str(zoo))) == []
    after = run_recipe(recipe, store)
    assert before.accuracy["expert"]["alpha"] == after.accuracy["expert"]["alpha"], "the same function"
    assert after.bias["merged"].l1["alpha"] < 0.5 * before.bias["merged"].l1["alpha"]


@pytest.mark.parametrize("groups", ["all", "units"])
@pytest.mark.parametrize("method", ALIGNMENTS)
def test_a_base_of_its_own_keeps_its_function_and_comes_nearer(method, groups, zoo):
    """Two networks that have nothing in common: no perfect match, but never another function."""
    torch.manual_seed(5)
    theirs = {
        name: torch.randn_like(tensor) * tensor.std() for name, tensor in load_file(zoo / "base.safetensors").items()
    }
    moved = {name: tensor + 0.01 * torch.randn_like(tensor) for name, tensor in theirs.items()}
    save_file(theirs, zoo / "theirs.safetensors")
    save_file(moved, zoo / "experts" / "alpha.safetensors")
    own = dict(encoder_of(Zoo.open(str(zoo)), "alpha").named_parameters())
    record = align_experts(str(zoo), method, {**ALIGNMENTS[method].quick, "groups": groups})["alpha"]
    assert record["apart"] < 1e-10
    assert any(record["moved"].values()) == (method != "as_it_is")
    assert (set(record["moved"]) == {"units_0", "units_1"}) == (groups == "units")
    if method == "weight_matching":
        assert record["after"] > record["before"]
    aligned = encoder_of(Zoo.open(str(zoo)), "alpha")
    images = torch.randn(4, 3, 16, 16)
    check_same_function(aligned.double(), own, dict(aligned.named_parameters()), images)


def test_aligned_copies_stand_beside_the_expert(command, zoo):
    for method, called in (("as_it_is", "unmatched"), ("random_order", "shuffled"), ("weight_matching", "matched")):
        code, _, err = command("zoo", "align", zoo, "--expert", "alpha", "--method", method, "--called", called)
        assert (code, err) == (0, "")
    table = read_manifest(zoo).expert_table
    assert [name for name in table if table[name].task == "alpha"] == [
        "alpha", "alpha-matched", "alpha-shuffled", "alpha-unmatched",
    ]  # fmt: skip
    assert (table["alpha"].aligned, table["alpha-shuffled"].aligned) == ("", "random_order")
    own, wanted = load_file(zoo / table["alpha"].weights), load_file(zoo / "untouched.safetensors")
    name = "visual.transformer.resblocks.0.mlp.c_fc.weight"
    found = {called: load_file(zoo / table[f"alpha-{called}"].weights)[name] for called in ("unmatched", "shuffled")}
    assert torch.equal(found["unmatched"], own[name])
    assert not torch.equal(found["shuffled"], own[name])
    assert torch.equal(load_file(zoo / table["alpha-matched"].weights)[name], wanted[name])
    with pytest.raises(EngineError, match="alpha-matched' already"):
        align_experts(str(zoo), "weight_matching", {}, ["alpha"], called="matched")


def narrower(zoo):
    tensors = load_file(zoo / "theirs.safetensors")
    tensors["visual.proj"] = tensors["visual.proj"][:, :-1].contiguous()
    save_file(tensors, zoo / "theirs.safetensors")


def not_finite(zoo):
    tensors = load_file(zoo / "theirs.safetensors")
    tensors["visual.conv1.weight"][0] = float("nan")
    save_file(tensors, zoo / "theirs.safetensors")


def missing(zoo):
    (zoo / "theirs.safetensors").unlink()


def nothing(zoo):
    pass


FAULTS = {
    "widths": (narrower, {}, r"equal widths: visual.proj has shape \(32, 16\) in one and shape \(32, 15\)"),
    "nan": (not_finite, {}, "not finite"),
    "file": (missing, {}, "missing from"),
    "method": (nothing, {"method": "weight_macthing"}, "Did you mean 'weight_matching'"),
    "parameter": (nothing, {"params": {"sweeps": 0}}, "sweeps"),
    "expert": (nothing, {"names": ["aplha"]}, "Did you mean 'alpha'"),
    "own base": (nothing, {"names": ["beta"]}, "names no base of its own"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_aligned_is_refused_with_the_reason(fault, zoo):
    spoil, change, reason = FAULTS[fault]
    spoil(zoo)
    before = (zoo / "zoo.yaml").read_text()
    with pytest.raises(EngineError, match=reason):
        align_experts(**{"zoo": str(zoo), "method": "weight_matching", "params": {}, **change})
    assert (zoo / "zoo.yaml").read_text() == before
    assert not list((zoo / "aligned").glob("*")) if (zoo / "aligned").exists() else True


def test_an_alignment_that_changes_the_function_writes_nothing(zoo, monkeypatch):
    def broken(tensors, symmetry, orders):
        found = reordered(tensors, symmetry, orders)
        name = "transformer.resblocks.0.attn.in_proj_weight"
        query, key, value = found[name].chunk(3)
        return {**found, name: torch.cat([query, key.roll(1, 0), value])}

    monkeypatch.setattr("engine.pipeline.zoos.align.reordered", broken)
    with pytest.raises(AlignmentError, match="changed what the network computes"):
        align_experts(str(zoo), "weight_matching", {})
    assert read_manifest(zoo).expert_table["alpha"].aligned == ""
