"""The receipt of a merge: the same live, exported and made again; it names what was left out; it is shown."""

import json

import pytest
import yaml
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from engine.__main__ import app
from engine.catalog import resolve
from engine.pipeline.executor import run_inline
from engine.pipeline.export.verify import verify
from engine.pipeline.planners import plan_request
from engine.pipeline.run.receipt import tensors_digest
from engine.pipeline.views.receipt import RECEIPT
from engine.recipe import read_recipe
from engine.store import Store
from engine.weights import open_weights
from tests.tiny_zoo import make_zoo

RECIPE = {
    "merge": {"method": "ties", "params": {"density": 0.4}},
    "transforms": [{"method": "lwptv", "params": {"eta": 0.5}}],
    "experts": ["gamma", "alpha", "beta"],
}


@pytest.fixture
def made(tmp_path):
    """A zoo whose base has a text tensor, a recipe on it, and the file merged from it."""
    zoo = make_zoo(tmp_path / "zoo")
    base = load_file(zoo / "base.safetensors")
    save_file({**base, "ln_final.weight": base["visual.ln_post.weight"].clone()}, zoo / "base.safetensors")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"zoo": str(zoo), **RECIPE}))
    file = tmp_path / "merged.safetensors"
    assert run("merge", str(recipe), "--out", str(file)).exit_code == 0
    return zoo, recipe, file


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def shown(recipe):
    """The folder of the view that the page of a run asks for."""
    store = Store()
    request = RECEIPT.ask(resolve(read_recipe(recipe))).model_dump(mode="json")
    return run_inline(plan_request("receipt", request, store), store)


def test_live_exported_and_made_again_are_equal_to_the_bit(made, tmp_path):
    _, recipe, file = made
    merged = (tmp_path / "merged.receipt.json").read_bytes()
    assert run("run", str(recipe), "--out", str(tmp_path / "run"), "-q").exit_code == 0
    for place, arguments in {
        tmp_path / "live.receipt.json": ("--to", str(tmp_path / "live.safetensors")),
        tmp_path / "hf" / "receipt.json": ("--to", str(tmp_path / "hf"), "--format", "hf"),
    }.items():
        result = run("export", str(tmp_path / "run"), *arguments)
        assert result.exit_code == 0, result.exception
        assert place.read_bytes() == merged
    folder = shown(recipe)
    assert (folder / "receipt.json").read_bytes() == merged
    assert json.loads(merged)["output"] == tensors_digest(open_weights(file))
    assert verify(file).receipt == "equal"


def test_it_says_of_every_tensor_what_came_from_whom(made, tmp_path):
    zoo, _, file = made
    document = json.loads((tmp_path / "merged.receipt.json").read_text())
    assert document["attribution"] == "entries"
    assert list(document["experts"]) == ["gamma", "alpha", "beta"]
    assert document["layers"] == list(load_file(file))
    pruned = [number for number, norm in enumerate(document["norm"]) if norm == 0]
    assert pruned
    for name, expert in document["experts"].items():
        fates = [expert[kind] for kind in ("kept", "trimmed", "outvoted", "dropped", "unmoved")]
        assert [sum(values) for values in zip(*fates, strict=True)] == pytest.approx([1] * len(document["layers"]))
        assert {expert["dropped"][number] for number in pruned} == {1.0}, name
        assert {expert["share"][number] for number in pruned} == {None}
    whole = document["total"]
    assert sum(row["share"] for row in whole["experts"].values()) == pytest.approx(1, abs=1e-5)
    assert abs(whole["rest"]) < 1e-5
    assert document["ignored"] == [
        {"models": ["base"], "reason": "not of the image encoder", "tensors": ["ln_final.weight"]}
    ]
    names = {(row["role"], row["name"]): row["sha256"] for row in document["inputs"]}
    assert names["expert", "beta"] == Store().digest_file(zoo / "experts" / "beta.safetensors")


def test_one_changed_number_is_found(made, tmp_path):
    _, _, file = made
    place = tmp_path / "merged.receipt.json"
    document = json.loads(place.read_text())
    document["total"]["experts"]["alpha"]["share"] += 0.01
    place.write_text(json.dumps(document))
    result = run("verify", str(file))
    assert result.exit_code == 1
    assert "differs in 'total'" in result.output
    place.write_text("{")
    assert "cannot be read" in str(run("verify", str(file)).exception)


@pytest.mark.parametrize(
    ("merge", "attribution", "said"),
    [
        ({"method": "iso_c"}, "none", "from all experts at once"),
        ({"method": "slerp", "params": {"t": 0.3}}, "layers", "one coefficient a layer"),
        ({"method": "emr"}, "none", "for each task or image"),
    ],
)
def test_what_cannot_be_told_is_said(tmp_path, merge, attribution, said):
    zoo = make_zoo(tmp_path / "zoo")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"zoo": str(zoo), "merge": merge, "experts": ["alpha", "beta"]}))
    document = RECEIPT.read(shown(recipe))
    assert document["attribution"] == attribution
    assert said in document["reason"]
    if attribution == "none" and "total" in document:
        assert {row["share"] for row in document["total"]["experts"].values()} == {None}


def test_files_without_a_zoo_and_weights_of_experts(tmp_path):
    zoo = make_zoo(tmp_path / "zoo")
    files = [str(zoo / "experts" / f"{name}.safetensors") for name in ("alpha", "beta")]
    out = tmp_path / "m.safetensors"
    given = ("--base", str(zoo / "base.safetensors"), "--expert", files[0], "--expert", files[1], "--out", str(out))
    assert run("merge", *given).exit_code == 0
    said = run("receipt", str(out))
    assert said.exit_code == 0, said.exception
    assert "alpha" in said.output
    assert "left over: 0.00 %" in said.output
    assert "already" in str(run("merge", *given).exception)
    recipe = tmp_path / "recipe.yaml"
    chosen = [{"name": "alpha", "weight": 2.0}, {"name": "beta", "weight": -1.0}]
    recipe.write_text(yaml.safe_dump({"zoo": str(zoo), "experts": chosen}))
    weighted = tmp_path / "w.safetensors"
    assert run("merge", str(recipe), "--out", str(weighted)).exit_code == 0
    assert verify(weighted).holds
    share = {
        n: r["share"] for n, r in json.loads((tmp_path / "w.receipt.json").read_text())["total"]["experts"].items()
    }
    assert share["alpha"] > 0.7 > 0.3 > share["beta"] > 0
    assert isinstance(run("receipt", str(zoo / "zoo.yaml")).exception, Exception)
