"""One made zoo in every form that people bring: each import scores as its models do where they come from."""

import copy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from engine.zoo.encoders.backbone import architecture, load_encoder
from engine.zoo.folder import Zoo
from engine.zoo.importing.convert import import_zoo
from engine.zoo.importing.request import parse_request
from engine.zoo.inspection.agreement import classify
from tests import foreign
from tests.made_imports import silent

TASK, IMAGES, RANK = "digits", 200, 8
GIVEN = {"architecture": "open_clip_config.json", "preprocess": "open_clip_config.json"}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Some of a task's test images, on which all forms are scored."""
    path = tmp_path_factory.mktemp("images") / f"{TASK}.npz"
    with np.load(foreign.data(TASK)) as arrays:
        np.savez(path, test_x=arrays["test_x"][:IMAGES], test_y=arrays["test_y"][:IMAGES])
    return path


@torch.no_grad()
def scored(encode, images: Path) -> float:
    """Percent of the images that an image encoder of another library recognises with the task's head."""
    with np.load(images) as arrays:
        pixels, labels = foreign.pixels(arrays["test_x"]), torch.as_tensor(arrays["test_y"])
    return 100 * float(((encode(pixels) @ foreign.rows(TASK).T).argmax(1) == labels).float().mean())


# -- five forms of folders of transformers, four of pickles, three of open_clip

HUGGING_FACE = ("whole", "projection", "bare", "shards", "bin")


def hugging_face(place: Path, form: str) -> tuple[Path, Path, dict]:
    start = foreign.write_hf(place / "base", "base", form="projection" if form == "bare" else form)
    return start, foreign.write_hf(place / TASK, TASK, form=form, prepared=False), {}


def pickles(place: Path, form: str) -> tuple[Path, Path, dict]:
    write = {
        "module": foreign.write_module,
        "legacy module": lambda path, model: foreign.write_module(path, model, legacy=True),
        "state": foreign.write_state,
        "checkpoint": lambda path, model: foreign.write_state(path, model, nested=True),
    }[form]
    given = {} if "module" in form else config_file(place)
    return write(place / "zeroshot.pt", "base"), write(place / TASK / "finetuned.pt", TASK), given


def open_clip(place: Path, form: str) -> tuple[Path, Path, dict]:
    if form == "hub":
        return foreign.write_hub(place / "base", "base"), foreign.write_hub(place / TASK, TASK), {}
    start = foreign.write_tensors(place / "base" / "base.safetensors", "base")
    expert = foreign.write_tensors(place / TASK / "model.safetensors", TASK)
    if form == "given":
        return start, expert, config_file(place)
    foreign.write_hub(place / "hub", "base")
    shutil.copy(place / "hub" / "open_clip_config.json", start.parent)
    return start, expert, {}


def config_file(place: Path) -> dict:
    """A person's word: open_clip's own config, lying elsewhere."""
    foreign.write_hub(place / "elsewhere", "base")
    return {name: str(place / "elsewhere" / file) for name, file in GIVEN.items()}


FORMS = {f"transformers: {form}": (hugging_face, form) for form in HUGGING_FACE}
FORMS |= {f"pickle: {form}": (pickles, form) for form in ("module", "legacy module", "state", "checkpoint")}
FORMS |= {f"open_clip: {form}": (open_clip, form) for form in ("hub", "beside", "given")}


# -- six forms of LoRA adapters, all of one task vector

LAYERS = ["q_proj", "v_proj", "out_proj", "fc1", "fc2"]
ADAPTERS = {
    "plain": {},
    "alpha": {"lora_alpha": 2 * RANK},
    "rank-stabilised": {"use_rslora": True},
    "ranks of its own": {"rank_pattern": {"fc1": 2 * RANK}, "alpha_pattern": {"fc1": 2 * RANK}},
    "pickled": {},
    "on a whole CLIP": {},
}


def low_rank() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The largest part of an expert's task vector, as B and A of linear layers of its blocks."""
    base, expert = (foreign.vision(model).state_dict() for model in ("base", TASK))
    found = {}
    for name in base:
        if name.split(".")[-2] in LAYERS and name.endswith("weight"):
            left, values, right = torch.linalg.svd(expert[name] - base[name], full_matrices=False)
            found[name.removesuffix(".weight")] = (left[:, :RANK] * values[:RANK], right[:RANK])
    return found


def write_adapter(place: Path, form: str, images: Path) -> float:
    """Write the task vector as an adapter of PEFT; returns what PEFT's own merged model scores."""
    base = foreign.hugging_face("base") if form == "on a whole CLIP" else foreign.vision("base")
    model = type(base)(base.config)
    model.load_state_dict(base.state_dict())
    options = {"r": RANK, "lora_alpha": RANK, "target_modules": LAYERS, **ADAPTERS[form]}
    adapted = get_peft_model(model.eval(), LoraConfig(**options))
    layers = {name.removeprefix("base_model.model."): part for name, part in adapted.named_modules()}
    with torch.no_grad():
        for name, (up, down) in low_rank().items():
            layer = layers[name]
            for matrix in (layer.lora_A["default"].weight, layer.lora_B["default"].weight):
                matrix.zero_()
            layer.lora_A["default"].weight[:RANK] = down
            layer.lora_B["default"].weight[:, :RANK] = up / layer.scaling["default"]
    adapted.save_pretrained(place)
    if form == "pickled":
        torch.save(load_file(place / "adapter_model.safetensors"), place / "adapter_model.bin")
        (place / "adapter_model.safetensors").unlink()
    merged = adapted.merge_and_unload().eval()
    if form == "on a whole CLIP":
        return scored(lambda pixels: merged.visual_projection(merged.vision_model(pixels).pooler_output), images)
    return scored(lambda pixels: merged(pixel_values=pixels).image_embeds, images)


# -- what they score


def imported(place: Path, start: Path, expert: Path, images: Path, given: dict) -> dict[str, float]:
    """Percent of the images that base and expert of an import recognise; every fact must be told with its origin."""
    head = foreign.write_head(place / f"head_{TASK}.pt", TASK)
    document = {"base": str(start), "experts": [{"name": TASK, "path": str(expert)}], "name": "z", **given}
    document |= {"heads": [{"task": TASK, "path": str(head)}], "data": {TASK: str(images)}, "out": str(place / "zoo")}
    summary = import_zoo(parse_request(document), silent)
    assert not summary["faults"]
    assert {"head_width", "quick_gelu", "preprocess"} <= {f["name"] for f in summary["facts"] if f["origin"]}
    zoo = Zoo.open(str(place / "zoo"))
    config, head = architecture(zoo.folder, zoo.manifest), zoo.heads([TASK])[0][TASK]
    data, rows = zoo.open_data(TASK), np.arange(IMAGES)
    encoders = {model: load_encoder(config, zoo.weights(model)) for model in ("base", TASK)}
    return {
        model: 100 * float(classify(encoder, head, data, rows, [zoo.preprocess()])[0].correct.mean())
        for model, encoder in encoders.items()
    }


@pytest.fixture(scope="module")
def expected(images):
    return {model: scored(foreign.clip(model).visual, images) for model in ("base", TASK)}


def test_the_expert_knows_more_than_the_base(expected):
    assert expected[TASK] > expected["base"] + 20


@pytest.mark.parametrize("form", FORMS)
def test_every_form_scores_as_where_it_comes_from(tmp_path, images, expected, form):
    write, variant = FORMS[form]
    start, expert, given = write(tmp_path, variant)
    if form == "transformers: bare":  # a vision model without its projection, which stays the base's
        tower = copy.deepcopy(foreign.clip(TASK).visual)
        tower.proj = foreign.clip("base").visual.proj
        expected = {**expected, TASK: scored(tower, images)}
    assert imported(tmp_path, start, expert, images, given) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("form", ADAPTERS)
def test_every_adapter_scores_as_merged_by_peft(tmp_path, images, expected, form):
    theirs = write_adapter(tmp_path / "adapter", form, images)
    start = foreign.write_hf(tmp_path / "base", "base")
    found = imported(tmp_path, start, tmp_path / "adapter", images, {})
    assert found == pytest.approx({"base": expected["base"], TASK: theirs}, abs=0.01)
    assert theirs > expected["base"] + 5
