"""One made zoo in every form that people bring: all imports of it score the same."""

import copy
import itertools
import shutil
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch import nn

from engine.zoo.encoders.backbone import architecture, load_encoder
from engine.zoo.folder import Zoo
from engine.zoo.importing.convert import import_zoo
from engine.zoo.importing.request import parse_request
from engine.zoo.inspection.agreement import classify
from tests import foreign
from tests.made_imports import silent

TASKS, IMAGES, RANK, SCALE = ("digits", "signs"), 48, 8, 20.0
MODELS = {"base": "base", **{task: f"{task}:{RANK}" for task in TASKS}}  # experts that every form can hold
GIVEN = {"architecture": "open_clip_config.json", "preprocess": "open_clip_config.json"}

Written = tuple[Path, dict[str, Path], dict]  # a base, experts, and what a person says


# -- five forms of folders of transformers, four of pickles, three of open_clip


def hugging_face(place: Path, form: str) -> Written:
    start = foreign.write_hf(place / "base", "base", form="projection" if form == "bare" else form)
    write = {task: foreign.write_hf(place / task, MODELS[task], form=form, prepared=False) for task in TASKS}
    return start, write, {}


def pickles(place: Path, form: str) -> Written:
    write = {
        "module": foreign.write_module,
        "legacy module": lambda path, model: foreign.write_module(path, model, legacy=True),
        "state": foreign.write_state,
        "checkpoint": lambda path, model: foreign.write_state(path, model, nested=True),
    }[form]
    experts = {task: write(place / task / "finetuned.pt", MODELS[task]) for task in TASKS}
    return write(place / "zeroshot.pt", "base"), experts, {} if "module" in form else config_file(place)


def open_clip(place: Path, form: str) -> Written:
    if form == "hub":
        start = foreign.write_hub(place / "base", "base")
        return start, {task: foreign.write_hub(place / task, MODELS[task]) for task in TASKS}, {}
    start = foreign.write_tensors(place / "base" / "base.safetensors", "base")
    experts = {task: foreign.write_tensors(place / task / "model.safetensors", MODELS[task]) for task in TASKS}
    if form == "given":
        return start, experts, config_file(place)
    foreign.write_hub(place / "hub", "base")
    shutil.copy(place / "hub" / "open_clip_config.json", start.parent)
    return start, experts, {}


def config_file(place: Path) -> dict:
    """A person's word: open_clip's own config, lying elsewhere."""
    foreign.write_hub(place / "elsewhere", "base")
    return {name: str(place / "elsewhere" / file) for name, file in GIVEN.items()}


# -- six forms of LoRA adapters

LAYERS = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
OPTIONS = {
    "alpha": {"lora_alpha": 2 * RANK},
    "rank-stabilised": {"use_rslora": True},
    "ranks of its own": {"rank_pattern": {"fc1": 2 * RANK}, "alpha_pattern": {"fc1": 2 * RANK}},
}


def adapters(place: Path, form: str) -> Written:
    start = foreign.write_hf(place / "base", "base")
    return start, {task: write_adapter(place / task, task, form) for task in TASKS}, {}


@cache
def factors(task: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The difference between expert and base as B and A of every linear layer of their blocks."""
    base, expert = (foreign.vision(model).state_dict() for model in ("base", MODELS[task]))
    found = {}
    for name, matrix in base.items():
        if name.split(".")[-2] in LAYERS and name.endswith("weight"):
            left, values, right = torch.linalg.svd(expert[name] - matrix, full_matrices=False)
            found[name.removesuffix(".weight")] = (left[:, :RANK] * values[:RANK], right[:RANK])
    return found


@torch.no_grad()
def write_adapter(place: Path, task: str, form: str) -> Path:
    """Write the difference between expert and base as an adapter of PEFT."""
    base = foreign.hugging_face("base") if form == "on a whole CLIP" else foreign.vision("base")
    options = {"r": RANK, "lora_alpha": RANK, "target_modules": LAYERS, **OPTIONS.get(form, {})}
    adapted = get_peft_model(copy.deepcopy(base), LoraConfig(**options))
    layers = {name.removeprefix("base_model.model."): part for name, part in adapted.named_modules()}
    for name, (up, down) in factors(task).items():
        layer = layers[name]
        for matrix in (layer.lora_A["default"].weight, layer.lora_B["default"].weight):
            matrix.zero_()
        layer.lora_A["default"].weight[:RANK] = down
        layer.lora_B["default"].weight[:, :RANK] = up / layer.scaling["default"]
    adapted.save_pretrained(place)
    if form == "pickled":
        torch.save(load_file(place / "adapter_model.safetensors"), place / "adapter_model.bin")
        (place / "adapter_model.safetensors").unlink()
    return place


KINDS = {
    hugging_face: ("whole", "projection", "bare", "shards", "bin"),
    pickles: ("module", "legacy module", "state", "checkpoint"),
    open_clip: ("hub", "beside", "given"),
    adapters: ("plain", *OPTIONS, "pickled", "on a whole CLIP"),
}
FORMS = [(write, form) for write, forms in KINDS.items() for form in forms]
SAID_BY = {
    hugging_face: {"config.json", "preprocessor_config.json"},
    adapters: {"config.json", "preprocessor_config.json"},
    pickles: {"the pickled module", *GIVEN.values()},
    open_clip: set(GIVEN.values()),
}


# -- what they score


def imported(place: Path, images: dict, heads: dict, written: Written) -> tuple[Zoo, dict]:
    """The zoo of an import without faults, and the origin of each fact."""
    start, experts, given = written
    document = {"base": str(start), "name": "z", "out": str(place / "zoo"), **given}
    document["experts"] = [{"name": task, "path": str(path)} for task, path in experts.items()]
    document["heads"] = [{"task": task, "path": str(path)} for task, path in heads.items()]
    document["data"] = {task: str(path) for task, path in images.items()}
    summary = import_zoo(parse_request(document), silent)
    assert not summary["faults"]
    return Zoo.open(str(place / "zoo")), {fact["name"]: fact["origin"] for fact in summary["facts"]}


class Scores(NamedTuple):
    """Answers of a base and experts to the test images, by task and model."""

    accuracy: dict[tuple[str, str], float]  # percent
    sureness: dict[tuple[str, str], np.ndarray]  # log-probability of the true class, (IMAGES,), in nats


def scores(zoo: Zoo) -> Scores:
    config, found = architecture(zoo.folder, zoo.manifest), Scores({}, {})
    for model in MODELS:
        encoder = load_encoder(config, zoo.weights(model))
        for task in TASKS if model == "base" else (model,):
            head, data = zoo.heads([task])[0][task], zoo.open_data(task)
            judged = classify(encoder, head, data, np.arange(IMAGES), [zoo.preprocess()])[0]
            found.accuracy[task, model] = 100 * judged.correct.mean()
            found.sureness[task, model] = judged.log_probability
    return found


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Some test images of each task, on which all forms are scored."""
    folder = tmp_path_factory.mktemp("images")
    for task in TASKS:
        with np.load(foreign.data(task)) as arrays:
            np.savez(folder / f"{task}.npz", test_x=arrays["test_x"][:IMAGES], test_y=arrays["test_y"][:IMAGES])
    return {task: folder / f"{task}.npz" for task in TASKS}


@torch.no_grad()
def computed_elsewhere(images) -> Scores:
    """The same, computed with open_clip and torch alone."""
    found = Scores({}, {})
    for task, path in images.items():
        with np.load(path) as arrays:
            pixels, labels = foreign.pixels(arrays["test_x"]), torch.as_tensor(arrays["test_y"])
        for model in ("base", task):
            features = foreign.clip(MODELS[model]).visual(pixels).double()
            logits = SCALE * nn.functional.normalize(features, dim=1) @ foreign.rows(task).T.double()
            found.accuracy[task, model] = 100 * float((logits.argmax(1) == labels).double().mean())
            found.sureness[task, model] = -nn.functional.cross_entropy(logits, labels, reduction="none").numpy()
    return found


def test_all_forms_of_one_zoo_score_the_same(tmp_path, images):
    heads = {task: foreign.write_head(tmp_path / f"head_{task}.pt", task, SCALE) for task in TASKS}
    elsewhere = computed_elsewhere(images)
    found = {"open_clip itself": elsewhere}
    for write, form in FORMS:
        place = tmp_path / form
        place.mkdir()
        zoo, origins = imported(place, images, heads, write(place, form))
        for fact in ("head_width", "quick_gelu", "preprocess"):
            assert any(said in origins[fact] for said in SAID_BY[write]), (form, fact, origins[fact])
        found[f"{write.__name__}: {form}"] = scores(zoo)
        shutil.rmtree(place)
    assert len(found) == 1 + 5 + 4 + 3 + 6
    for one, other in itertools.combinations(found, 2):
        assert found[one].accuracy == pytest.approx(found[other].accuracy, abs=0.01), (one, other)
        for key, sure in found[one].sureness.items():
            assert found[other].sureness[key] == pytest.approx(sure, abs=2e-3), (one, other, key)
    for task in TASKS:
        assert elsewhere.accuracy[task, task] > elsewhere.accuracy[task, "base"] + 5
