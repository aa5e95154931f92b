"""Outputs of commands never replace an input, replace nothing else unasked, and are never half-written."""

import hashlib
import os
from pathlib import Path

import pytest
import yaml

from engine.errors import EngineError
from engine.experiments.spec import FOLDER
from engine.store import Store
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


def test_a_folder_that_cannot_be_written_is_said_before_work_begins(command, zoo, tmp_path):
    """Fault 14: a run was computed, then ended with "Unexpected …"; permissions alone say nothing to the superuser."""
    recipe, shut = tmp_path / "recipe.yaml", tmp_path / "shut"
    recipe.write_text(yaml.safe_dump({"zoo": str(zoo)}))
    shut.mkdir(mode=0o555)
    closed = [Path("/proc/run"), *([shut / "run"] if os.geteuid() else [])]
    for out in closed:
        for words in (
            ("run", recipe, "--out", out, "-q"),
            ("merge", recipe, "--out", out.with_suffix(".safetensors")),
            ("zoo", "build", "mini8", "--out", out),
        ):
            code, _, err = command(*words)
            assert code == 1, words
            assert err.startswith("Error: "), err
            assert "cannot be written" in err
            assert not list(Store().artefacts()), f"computed before: {words}"
        with pytest.raises(EngineError, match="cannot be written"), new_folder(out):
            pass


@pytest.mark.parametrize("force", [False, True])
def test_no_command_replaces_what_its_zoo_holds(command, zoo, tmp_path, force):
    """Fault 1's neighbours: exports, tables and conversions onto files that they are made of."""
    recipe, folder, mergekit = (tmp_path / name for name in ("recipe.yaml", "run", "mergekit.yaml"))
    recipe.write_text(yaml.safe_dump({"zoo": str(zoo)}))
    assert command("run", recipe, "--out", folder, "-q").code == 0
    assert command("convert", recipe, "--to", mergekit).code == 0
    (tmp_path / "link.csv").symlink_to(zoo / "data" / "alpha.npz")
    more = ["--force"] if force else []
    before = digests(zoo)
    setting = ("--set", "merge.params.scaling=0.1,0.2", "-q")
    for words in (
        ("export", folder, "--to", zoo / "experts" / "alpha.safetensors"),
        ("export", folder, "--to", zoo / "zoo.yaml", "--format", "mergekit"),
        ("export", folder, "--to", tmp_path / "link.csv"),
        ("convert", mergekit, "--zoo", zoo, "--to", zoo / "zoo.yaml"),
        ("sweep", recipe, "--out", tmp_path / "link.csv", *setting),
        ("experiment", "best-on-test", "--zoo", zoo, "--out", zoo / "config.json", "--quick", "-q"),
    ):
        code, _, err = command(*words, *more)
        assert code == 1, words
        assert "is an input of this command" in err, (words, err)
    assert digests(zoo) == before


def test_folders_that_hold_something_are_left_alone(command, zoo, tmp_path):
    for words in (
        ("zoo", "build", "mini8", "--out", zoo),
        ("zoo", "build", "mini_text", "--out", zoo),
        ("examples", "--out", zoo),
        ("zoo", "init", zoo),
    ):
        before = digests(zoo)
        code, _, err = command(*words)
        assert (code, err.startswith("Error: ")) == (1, True), err
        assert digests(zoo) == before
    (zoo / "zoo.yaml").unlink()
    (zoo / "config.json").unlink()
    (zoo / "experts" / "beta.safetensors").write_bytes(b"broken")
    before = digests(zoo)
    assert command("zoo", "init", zoo, "--head-width", "16", "--no-quick-gelu", "--preprocess", "openai").code == 1
    assert digests(zoo) == before


def test_results_of_experiments_are_replaced_by_themselves_only(tmp_path):
    """`experiment all --out` goes on in its own folder."""
    from engine.commands.experiment import _is_result
    from engine.experiments import experiment_names, read_experiment

    name = next(name for name in experiment_names() if (FOLDER / f"{name}.json").is_file())
    other = next(known for known in experiment_names() if known != name)
    assert _is_result(FOLDER / f"{name}.json", read_experiment(name))
    assert not _is_result(FOLDER / f"{name}.json", read_experiment(other))
    (tmp_path / "mine.json").write_text("{}")
    assert not _is_result(tmp_path / "mine.json", read_experiment(name))
