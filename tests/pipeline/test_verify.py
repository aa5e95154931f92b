"""A merged file says how it was made; doing that again gives the same to the bit, or it is told what differs."""

import json

import numpy as np
import pytest
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from engine.__main__ import app
from engine.errors import CheckpointError
from engine.pipeline.export.verify import verify
from engine.pipeline.local import run_recipe
from engine.recipe import parse_recipe
from engine.store import Store
from tests.tiny_zoo import make_zoo


@pytest.fixture
def made(tmp_path):
    """A zoo, and a file merged from it."""
    zoo = make_zoo(tmp_path / "zoo")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        yaml.safe_dump({"zoo": str(zoo), "merge": {"method": "ties"}, "transforms": [{"method": "lwptv"}]})
    )
    file = tmp_path / "merged.safetensors"
    assert CliRunner().invoke(app, ["merge", str(recipe), "--out", str(file)]).exit_code == 0
    return zoo, file, recipe


def test_a_merge_and_an_exported_run_are_verified(made, tmp_path):
    _, file, recipe = made
    result = CliRunner().invoke(app, ["verify", str(file)])
    assert result.exit_code == 0, result.output
    assert "equal to the bit" in result.output
    assert CliRunner().invoke(app, ["run", str(recipe), "--out", str(tmp_path / "run"), "-q"]).exit_code == 0
    own = CliRunner().invoke(app, ["verify", str(tmp_path / "run" / "merged.safetensors")])
    assert f"`python -m engine export {tmp_path / 'run'} --to M.safetensors`" in str(own.exception)
    live = tmp_path / "live.safetensors"
    assert CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--to", str(live)]).exit_code == 0
    assert verify(live).holds


def test_one_changed_value_is_found(made):
    _, file, _ = made
    tensors = load_file(file)
    tensors["visual.conv1.weight"].view(-1)[7] += 1e-6
    with safe_open(file, "pt") as opened:
        save_file(tensors, file, metadata=opened.metadata())
    result = CliRunner().invoke(app, ["verify", str(file)])
    assert result.exit_code == 1
    assert "Differs: visual.conv1.weight" in result.output
    assert "1 of " in result.output


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        (lambda tensor: tensor[:-1].clone(), r"is float32 of shape \(31, .*merge's float32 of shape \(32, "),
        (lambda tensor: tensor.double(), "is float64 of shape .*merge's float32"),
    ],
    ids=["shape", "dtype"],
)
def test_a_tensor_of_another_form_is_named(made, changed, found):
    _, file, _ = made
    tensors = load_file(file)
    tensors["visual.conv1.weight"] = changed(tensors["visual.conv1.weight"])
    with safe_open(file, "pt") as opened:
        save_file(tensors, file, metadata=opened.metadata())
    with pytest.raises(CheckpointError, match=f"visual.conv1.weight {found}"):
        verify(file)


def test_a_changed_input_is_named_and_a_moved_zoo_can_be(made, tmp_path):
    zoo, file, _ = made
    moved = zoo.rename(tmp_path / "elsewhere")
    assert "no zoo" in str(CliRunner().invoke(app, ["verify", str(file)]).exception)
    assert verify(file, str(moved)).holds
    tensors = load_file(moved / "experts" / "beta.safetensors")
    tensors["visual.proj"] += 0.1
    save_file(tensors, moved / "experts" / "beta.safetensors")
    found = verify(file, str(moved))
    assert found.changed == ("beta",)
    assert "visual.proj" in found.differing


def test_a_file_that_says_nothing_is_refused(made):
    zoo, *_ = made
    result = CliRunner().invoke(app, ["verify", str(zoo / "base.safetensors")])
    assert "does not say how it was made" in str(result.exception)


LOOKING = {
    "adamerging": {"steps": 4, "batch_size": 4},
    "regmean": {"examples": 16},
    "fisher": {"examples": 8},
}


@pytest.fixture(params=LOOKING)
def looked(request, tmp_path):
    """A zoo, and the exported file of a run whose method looks at images."""
    zoo = make_zoo(tmp_path / "zoo")
    recipe = {"zoo": str(zoo), "merge": {"method": request.param, "params": LOOKING[request.param]}, "seeds": [3]}
    run_recipe(parse_recipe(recipe), Store(tmp_path / "store"), out=tmp_path / "run")
    file = tmp_path / "merged.safetensors"
    assert CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--to", str(file)]).exit_code == 0
    return zoo, file


def test_a_merge_that_looks_at_images_is_done_again_with_the_same_ones(looked, tmp_path):
    zoo, file = looked
    with safe_open(file, "pt") as opened:
        roles = [origin["role"] for origin in json.loads(opened.metadata()["origins"])]
    assert roles.count("data") == 3
    moved = zoo.rename(tmp_path / "elsewhere")
    result = CliRunner().invoke(app, ["verify", str(file), "--zoo", str(moved)])
    assert result.exit_code == 0, result.output
    assert "equal to the bit" in result.output
    assert "same images of alpha, beta, gamma" in result.output
    images = dict(np.load(moved / "data" / "beta.npz"))
    images["adapt_x"] = 255 - images["adapt_x"]
    np.savez(moved / "data" / "beta.npz", **images)
    result = CliRunner().invoke(app, ["verify", str(file), "--zoo", str(moved)])
    assert result.exit_code == 1
    assert "Changed since: images of beta" in result.output


def test_rounding_of_forward_passes_is_told_from_another_merge(looked):
    _, file = looked
    tensors = load_file(file)
    with safe_open(file, "pt") as opened:
        header = opened.metadata()
    name = "visual.conv1.weight"
    tensors[name] = tensors[name] * (1 + 1e-6)
    save_file(tensors, file, metadata=header)
    file.with_suffix(".receipt.json").unlink()
    found = verify(file)
    assert (found.differing, found.holds) == ((name,), True)
    assert 0 < found.distance < 1e-3
    tensors[name] = tensors[name] * 1.5
    save_file(tensors, file, metadata=header)
    assert not verify(file).holds


def test_a_file_that_does_not_say_its_images_is_refused(looked):
    _, file = looked
    with safe_open(file, "pt") as opened:
        header = opened.metadata()
    kept = [origin for origin in json.loads(header["origins"]) if origin["role"] != "data"]
    save_file(load_file(file), file, metadata={**header, "origins": json.dumps(kept)})
    with pytest.raises(CheckpointError, match="does not say at which"):
        verify(file)
