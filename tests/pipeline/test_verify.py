"""A merged file says how it was made; doing that again gives the same to the bit, or it is told what differs."""

import pytest
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from engine.__main__ import app
from engine.pipeline.export.verify import verify
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
