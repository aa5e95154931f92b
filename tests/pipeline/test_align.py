"""Experts of another base: aligned by the command, found again where an order was planted, else refused."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from engine.alignment.methods import check_same_function, reordered
from engine.alignment.symmetry import random_permutations
from engine.alignment.transformer import transformer_symmetry, unfolded
from engine.catalog import ALIGNMENTS
from engine.errors import AlignmentError, Cancelled, EngineError, RecipeError, ZooError
from engine.manifest import read_manifest
from engine.pipeline.executor import run_inline
from engine.pipeline.local import align_experts, run_recipe
from engine.pipeline.planners import plan_request
from engine.pipeline.run.encoding import encoder_of
from engine.pipeline.run.findings import findings
from engine.pipeline.tools import Silent
from engine.pipeline.zoos.aligning import images_in_words
from engine.recipe import parse_recipe
from engine.store import Store
from engine.zoo.folder import Zoo
from engine.zoo.making.adopt import put_aligned
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
    align_experts({"zoo": str(zoo), "method": "as_it_is", "called": "unmatched"}, store)
    before = run_recipe(parse_recipe({"zoo": str(zoo), "experts": ["alpha-unmatched", "beta"]}), store)
    align_experts({"zoo": str(zoo), "experts": ["alpha"]}, store)
    assert findings(recipe, Zoo.open(str(zoo))) == []
    after = run_recipe(recipe, store)
    assert before.accuracy["expert"]["alpha"] == after.accuracy["expert"]["alpha"], "the same function"
    assert after.bias["merged"].l1["alpha"] < 0.5 * before.bias["merged"].l1["alpha"]


@pytest.mark.parametrize("groups", ["all", "units"])
@pytest.mark.parametrize("method", ALIGNMENTS)
def test_a_base_of_its_own_keeps_its_function_and_comes_nearer(method, groups, zoo, store):
    """Two networks that have nothing in common: no perfect match, but never another function."""
    torch.manual_seed(5)
    base = load_file(zoo / "base.safetensors")
    theirs = {name: tensor.mean() + torch.randn_like(tensor) * tensor.std() for name, tensor in base.items()}
    moved = {name: tensor + 0.01 * torch.randn_like(tensor) for name, tensor in theirs.items()}
    save_file(theirs, zoo / "theirs.safetensors")
    save_file(moved, zoo / "experts" / "alpha.safetensors")
    own = dict(encoder_of(Zoo.open(str(zoo)), "alpha").named_parameters())
    params = {**ALIGNMENTS[method].quick, "groups": groups}
    record = align_experts({"zoo": str(zoo), "method": method, "params": params}, store)["alpha"]
    assert record["apart"] < 1e-10
    assert any(record["moved"].values()) == (method != "as_it_is")
    assert (set(record["moved"]) == {"units_0", "units_1"}) == (groups == "units")
    if method == "weight_matching":
        assert record["after"] > record["before"]
    aligned = encoder_of(Zoo.open(str(zoo)), "alpha")
    images = torch.randn(4, 3, 16, 16)
    check_same_function(aligned.double(), own, dict(aligned.named_parameters()), images)


def test_aligned_copies_stand_beside_the_expert(command, zoo, store):
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
        align_experts({"zoo": str(zoo), "experts": ["alpha"], "called": "matched"}, store)


def narrower(zoo):
    tensors = load_file(zoo / "theirs.safetensors")
    tensors["visual.proj"] = tensors["visual.proj"][:, :-1].contiguous()
    save_file(tensors, zoo / "theirs.safetensors")


def not_finite(zoo):
    tensors = load_file(zoo / "theirs.safetensors")
    tensors["visual.conv1.weight"][0] = float("nan")
    save_file(tensors, zoo / "theirs.safetensors")


def aligned(zoo):
    with_base(zoo, aligned="as_it_is")


def without_images(zoo):
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    del document["tasks"][0]["data"]
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))


def without_labels(zoo):
    path = zoo / "data" / "alpha.npz"
    with np.load(path) as found:
        np.savez(path.with_suffix(".new.npz"), **{name: found[name] for name in found.files if "val" not in name})
    path.with_suffix(".new.npz").replace(path)


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
    "expert": (nothing, {"experts": ["aplha"]}, "Did you mean 'alpha'"),
    "nobody": (nothing, {"experts": []}, "choose at least one expert"),
    "own base": (nothing, {"experts": ["beta"]}, "names no base of its own"),
    "aligned": (aligned, {"experts": ["alpha"]}, r"'alpha' is aligned already \(as_it_is\)"),
    "nothing left": (aligned, {}, "nothing to align"),
    "way": (nothing, {"called": "standard"}, "calls the way of expert 'alpha' 'standard' already"),
    "long": (nothing, {"called": "c" * 60}, "too long a name"),
    "no images": (without_images, {"method": "activation_matching"}, "needs adapt or train or test images of 'alpha'"),
    "no labels": (without_labels, {"method": "sinkhorn"}, "needs val or train images of 'alpha'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_aligned_is_refused_with_the_reason(fault, zoo, store):
    spoil, change, reason = FAULTS[fault]
    spoil(zoo)
    before = (zoo / "zoo.yaml").read_text()
    with pytest.raises(EngineError, match=reason):
        align_experts({"zoo": str(zoo), **change}, store)
    assert (zoo / "zoo.yaml").read_text() == before
    assert not (zoo / "aligned").exists()


def test_a_zoo_that_stays_as_it_is_says_where_its_experts_are_aligned(zoo, store, monkeypatch):
    with pytest.raises(ZooError, match=r"'mini8' comes with the app and stays as it is\. Align its experts in a"):
        plan_request("align", {"zoo": "mini8"}, store)
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(ZooError, match=r"The folder of the zoo 'tiny' cannot be written\. Align its experts in a"):
        plan_request("align", {"zoo": str(zoo)}, store)


def test_the_record_says_what_was_looked_at(zoo, store):
    request = {"zoo": str(zoo), "method": "activation_matching", "params": {"images": 16}, "called": "matched"}
    plan = plan_request("align", request, store)
    assert [(step.name, step.label) for step in plan.steps] == [
        ("align_expert", "Aligning alpha"),
        ("adopt_aligned", "Putting the experts into the zoo"),
    ]
    (record,) = align_experts(request, store).values()
    assert (record["expert"], record["method"], record["params"]["images"]) == ("alpha", "activation_matching", 16)
    assert record["looked"] == [{"split": "adapt", "n": 16}]
    assert record["checked"] == {"split": "adapt", "n": 8}
    assert images_in_words(record) == "matched on 16 adapt images, compared on 8 adapt images"
    (row,) = store.runs.list(kinds=("align",), limit=1)
    assert (row.state, row.request["called"]) == ("finished", "matched")
    assert "alpha: inner product with the base" in " ".join(line.line for line in store.runs.logs.read(row.id))


def test_without_images_made_ones_are_compared(zoo, tmp_path):
    without_images(zoo)
    record = align_experts({"zoo": str(zoo)}, Store(tmp_path / "own"))["alpha"]
    assert images_in_words(record, "images") == "matched on weights alone, compared on 8 made images"


def test_the_command_and_the_request_leave_the_same_zoo(command, zoo, tmp_path):
    shutil.copytree(zoo, tmp_path / "again")
    (record,) = align_experts({"zoo": str(zoo)}, Store(tmp_path / "own")).values()
    code, out, err = command("zoo", "align", tmp_path / "again")
    assert (code, err) == (0, "")
    assert f"{record['before']:.4g} → {record['after']:.4g}" in out
    assert "matched on weights alone, compared on 8 adapt images" in out
    for file in ("zoo.yaml", "aligned/alpha.safetensors"):
        assert (zoo / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


@pytest.mark.parametrize("called", ["", "matched"])
def test_putting_them_into_the_zoo_twice_changes_nothing_more(called, zoo, store):
    """As after a worker was lost when its work was done."""
    plan = plan_request("align", {"zoo": str(zoo), "called": called}, store)
    folder = run_inline(plan, store)
    written, put = (zoo / "zoo.yaml").read_text(), plan.steps[-1]
    shutil.rmtree(folder)
    assert json.loads((run_inline(plan, store) / "aligned.json").read_text())
    assert (zoo / "zoo.yaml").read_text() == written
    gone = {**yaml.safe_load(written), "experts": []}
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(gone))
    with pytest.raises(ZooError, match="no expert 'alpha' any more"):
        put_aligned(Zoo.open(str(zoo)), {}, put.params.listed, "weight_matching", called)


def test_a_name_that_was_taken_meanwhile_is_refused(zoo, store):
    plan = plan_request("align", {"zoo": str(zoo), "called": "matched"}, store)
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    document["experts"].append({"name": "alpha-matched", "task": "alpha", "weights": "w", "method": "mine"})
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(ZooError, match="has an expert 'alpha-matched' already"):
        run_inline(plan, store)
    assert read_manifest(zoo).expert_table["alpha-matched"].weights == "w"


def test_a_matching_stops_where_nobody_wants_it_any_more(zoo, tmp_path):
    """Told at every group of units, so that large networks need not be waited for."""

    class Stopped(Silent):
        looks = 0

        def cancelled(self):
            self.looks += 1
            return self.looks > 6

    store = Store(tmp_path / "own")
    with pytest.raises(Cancelled) as stopped:
        run_inline(plan_request("align", {"zoo": str(zoo)}, store), store, Stopped())
    assert "weight_matching" in [entry.name for entry in stopped.traceback]
    assert read_manifest(zoo).expert_table["alpha"].aligned == ""


def test_an_alignment_that_changes_the_function_writes_nothing(zoo, tmp_path, monkeypatch):
    def broken(tensors, symmetry, orders):
        found = reordered(tensors, symmetry, orders)
        name = "transformer.resblocks.0.attn.in_proj_weight"
        query, key, value = found[name].chunk(3)
        return {**found, name: torch.cat([query, key.roll(1, 0), value])}

    monkeypatch.setattr("engine.pipeline.zoos.align.reordered", broken)
    with pytest.raises(AlignmentError, match="changed what the network computes"):
        align_experts({"zoo": str(zoo)}, Store(tmp_path / "nothing known"))
    assert not (zoo / "aligned").exists()
    assert read_manifest(zoo).expert_table["alpha"].aligned == ""
