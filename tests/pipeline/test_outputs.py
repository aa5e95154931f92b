"""Outputs of commands never replace an input, replace nothing else unasked, and are never half-written."""

import hashlib
import os

import pytest
import yaml

from engine.errors import EngineError
from engine.store.outputs import new_file, new_folder
from tests.tiny_zoo import make_zoo


@pytest.fixture
def zoo(tmp_path):
    return make_zoo(tmp_path / "tiny")


def digests(folder):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("spelling", ["itself", "other spelling", "symbolic link", "hard link"])
@pytest.mark.parametrize("model", ["base.safetensors", "experts/beta.safetensors"])
@pytest.mark.parametrize("force", [False, True])
def test_a_merge_never_replaces_its_inputs(command, zoo, tmp_path, model, spelling, force):
    out = zoo / model
    if spelling == "other spelling":
        out = zoo / "experts" / ".." / model
    elif spelling != "itself":
        out = tmp_path / "link.safetensors"
        os.link(zoo / model, out) if spelling == "hard link" else out.symlink_to(zoo / model)
    before = digests(tmp_path)
    named = [part for name in ("alpha", "beta") for part in ("--expert", zoo / "experts" / f"{name}.safetensors")]
    more = ["--force"] if force else []
    code, _, err = command("merge", "--base", zoo / "base.safetensors", *named, "--out", out, *more)
    assert code == 1
    assert "input" in err
    assert digests(tmp_path) == before
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"zoo": str(zoo)}))
    code, _, err = command("merge", recipe, "--out", out, *more)
    assert code == 1
    assert "input" in err
    assert {path: digest for path, digest in digests(tmp_path).items() if path != recipe} == before


def test_another_file_is_replaced_only_when_that_is_asked_for(command, zoo, tmp_path):
    out, recipe = tmp_path / "merged.safetensors", tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"zoo": str(zoo)}))
    out.write_bytes(b"mine")
    code, _, err = command("merge", recipe, "--out", out)
    assert (code, out.read_bytes()) == (1, b"mine")
    assert "--force" in err
    assert command("merge", recipe, "--out", out, "--force")[0] == 0
    assert out.stat().st_size > 1000


def test_writing_commands_ask_before_they_compute(command, zoo, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"zoo": str(zoo)}))
    folder = tmp_path / "run"
    assert command("run", recipe, "--out", folder, "-q")[0] == 0
    before = digests(folder)
    missing = tmp_path / "no" / "where.csv"
    for words in (
        ("export", folder, "--to", missing),
        ("export", folder, "--to", folder / "report.json"),
        ("export", folder, "--to", folder / "report.json", "--force"),
        ("sweep", recipe, "--set", "merge.params.scaling=0.1,0.2", "--out", missing, "-q"),
        ("convert", recipe, "--to", recipe, "--force"),
        ("convert", recipe, "--to", tmp_path),
        ("merge", recipe, "--out", missing),
        ("run", recipe, "--out", recipe, "-q"),
    ):
        code, _, err = command(*words)
        assert code == 1, words
        assert err.startswith("Error: "), err
    assert digests(folder) == before
    assert not missing.parent.exists()


def test_a_file_that_is_not_finished_leaves_the_old_one(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")

    def write_half(place):
        with new_file(place, force=True) as file:
            file.write_text("ne")
            raise EngineError("stopped")

    with pytest.raises(EngineError, match="stopped"):
        write_half(path)
    assert [item.name for item in tmp_path.iterdir()] == ["table.csv"]
    assert path.read_text() == "old"


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind the superuser")
def test_a_folder_that_cannot_be_written_is_said_before_work_begins(command, zoo, tmp_path):
    recipe, shut = tmp_path / "recipe.yaml", tmp_path / "shut"
    recipe.write_text(yaml.safe_dump({"zoo": str(zoo)}))
    shut.mkdir(mode=0o555)
    code, _, err = command("run", recipe, "--out", shut / "run", "-q")
    assert code == 1
    assert "cannot be written" in err
    with pytest.raises(EngineError, match="cannot be written"), new_folder(shut / "run"):
        pass
