"""Bad zoos and recipes end in one clear sentence, with nothing half-written and nothing executed."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from engine.errors import CalibrationError, EngineError
from engine.pipeline.local import run_recipe
from engine.recipe import parse_recipe
from engine.store import Store
from tests.tiny_zoo import make_zoo, write_task

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def zoo(tmp_path):
    return make_zoo(tmp_path / "tiny")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "artefacts")


def edit_manifest(zoo, change):
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    change(document)
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))


def edit_expert(zoo, change, name="beta"):
    path = zoo / "experts" / f"{name}.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def missing_weights(zoo):
    (zoo / "experts" / "beta.safetensors").unlink()


def truncated_weights(zoo):
    path = zoo / "experts" / "beta.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def wrong_shape(zoo):
    edit_expert(zoo, lambda t: t.update({"visual.proj": torch.zeros(32, 8)}))


def wrong_architecture(zoo):
    edit_expert(zoo, lambda t: t.update({"visual.transformer.resblocks.2.ln_1.weight": torch.zeros(32)}))


def missing_tensor(zoo):
    edit_expert(zoo, lambda t: t.pop("visual.conv1.weight"))


def not_a_number(zoo):
    edit_expert(zoo, lambda t: t["visual.proj"].view(-1)[3:4].fill_(float("nan")))


def infinite(zoo):
    edit_expert(zoo, lambda t: t["visual.ln_post.bias"][:1].fill_(float("inf")))


def unknown_key(zoo):
    edit_manifest(zoo, lambda d: d["experts"][1].update({"weight": "x"}))


def leaving_path(zoo):
    edit_manifest(zoo, lambda d: d["experts"][1].update({"weights": "../outside.safetensors"}))


def leaving_link(zoo):
    target = zoo.parent / "secret.safetensors"
    target.write_bytes((zoo / "experts" / "beta.safetensors").read_bytes())
    (zoo / "experts" / "beta.safetensors").unlink()
    (zoo / "experts" / "beta.safetensors").symlink_to(target)


def other_size(zoo):
    edit_manifest(zoo, lambda d: d["backbone"]["preprocess"].update({"size": 32}))


def label_outside(zoo):
    with np.load(zoo / "data" / "beta.npz") as arrays:
        changed = dict(arrays)
    changed["test_y"] = changed["test_y"] + 1
    np.savez(zoo / "data" / "beta.npz", **changed)


def empty_task(zoo):
    write_task(zoo / "data" / "beta.npz", 0, 0)


def pickled_data(zoo):
    np.savez(zoo / "data" / "beta.npz", test_x=np.array([{"a": 1}], dtype=object), test_y=np.zeros(1, int))


def too_few_classes(zoo):
    edit_manifest(zoo, lambda d: d["tasks"][1].update({"classes": ["a", "b"]}))


def yaml_bomb(zoo):
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 80))]
    (zoo / "zoo.yaml").write_text("\n".join(lines))


FAULTS = {
    missing_weights: r"beta\.safetensors.*missing",
    truncated_weights: r"beta\.safetensors",
    wrong_shape: r"Expert 'beta' has visual\.proj of shape \(32, 8\); the base has \(32, 16\)",
    wrong_architecture: r"beta.*visual\.transformer\.resblocks\.2\.ln_1\.weight",
    missing_tensor: r"beta.*visual\.conv1\.weight",
    not_a_number: r"Expert 'beta' has 1 NaN.*visual\.proj",
    infinite: r"Expert 'beta' has .* 1 infinite.*visual\.ln_post\.bias",
    unknown_key: r"unknown key 'experts\.1\.weight'\. Did you mean 'weights'\?",
    leaving_path: r"outside the zoo's folder",
    leaving_link: r"outside the zoo's folder",
    other_size: r"images of 32 px, but .* positions for images of 16 px",
    label_outside: r"label 3, but there are 3 classes",
    empty_task: r"beta.*no test images",
    pickled_data: r"beta.*(objects|damaged)",
    too_few_classes: r"beta.*(label 2, but there are 2 classes|lists 2 classes)",
    yaml_bomb: r"aliases",
}


@pytest.mark.parametrize("spoil", FAULTS, ids=lambda f: f.__name__)
def test_a_bad_zoo_is_refused_with_the_reason(spoil, zoo, store):
    good = run_recipe(parse_recipe({"zoo": str(zoo), "experts": ["alpha", "gamma"]}), store)
    before = sorted(a.key for a in store.artefacts())
    spoil(zoo)
    with pytest.raises(EngineError, match=FAULTS[spoil]):
        run_recipe(parse_recipe({"zoo": str(zoo), "experts": ["alpha", "beta"]}), store)
    assert store.find(good.identity) is not None
    assert set(before) <= {artefact.key for artefact in store.artefacts()}
    leftovers = [path for path in store.root.rglob("*") if path.is_dir() and path.name.startswith((".", "tmp"))]
    assert not [path for path in leftovers if any(path.iterdir())]


class Canary:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_a_pickle_that_would_run_code_does_not(form, zoo, store, tmp_path):
    sung = tmp_path / "sung"
    path = zoo / "experts" / "beta.safetensors"
    if form == "torch":
        torch.save({"visual.proj": Canary(sung)}, path)
    else:
        path.write_bytes(pickle.dumps(Canary(sung)))
    with pytest.raises(EngineError, match="beta"):
        run_recipe(parse_recipe({"zoo": str(zoo)}), store)
    assert not sung.exists()


def test_a_batch_larger_than_the_task_is_refused(zoo, store):
    calibrators = [{"method": "surgery", "params": {"steps": 5, "batch_size": 64}}]
    with pytest.raises(CalibrationError, match="64"):
        run_recipe(parse_recipe({"zoo": str(zoo), "calibrators": calibrators}), store)
    assert [row.state for row in store.runs.list()] == ["failed"]


RECIPES = {
    "merg: {}": "unknown key 'merg'. Did you mean 'merge'?",
    "merge: {method: tiess}": "There is no merge method 'tiess'. Did you mean 'ties'?",
    "merge: {method: ties, params: {densty: 0.1}}": "unknown key 'densty'. Did you mean 'density'?",
    "merge: {method: task_arithmetic, params: {scaling: .nan}}": "scaling",
    "merge: {method: task_arithmetic, params: {scaling: 9}}": "less than or equal to 2",
    "calibrators: [{method: surgery, name: merged}]": "cannot be named 'merged'",
    "calibrators: [{method: surgery, name: features}]": "cannot be named 'features'",
    "calibrators: [{method: surgery}, {method: surgery}]": "two calibrators are named 'surgery'",
    "probe: {protocol: cheating}": "'probe.protocol'",
    "seeds: []": "seeds",
    "seeds: zero": "'seeds': expected a list (found 'zero').",
    "[1, 2]": "mapping",
    "a: [": "not valid YAML",
    "!!python/object/apply:os.system ['true']": "not valid YAML",
}


@pytest.mark.parametrize("text", RECIPES)
def test_a_bad_recipe_is_one_line_on_the_command_line(text, tmp_path, command):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    code, out, err = command("run", path)
    assert code == 1
    assert RECIPES[text] in err
    assert not out


def test_the_command_line_prints_no_traceback(tmp_path):
    command = [sys.executable, "-m", "engine", "run", str(tmp_path / "none.yaml")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("Error: The recipe")
    assert "Traceback" not in result.stderr
