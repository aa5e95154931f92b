"""From a base and a folder of images to experts: heads, training, resuming, and what stands in the way."""

import json
import multiprocessing
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from open_clip.model import CLIP
from safetensors.torch import load_file, save_file

from engine.errors import Cancelled, EngineError
from engine.manifest import read_manifest
from engine.pipeline.executor import run_inline
from engine.pipeline.local import finetune_experts
from engine.pipeline.planners import plan_request
from engine.pipeline.tools import Silent
from engine.pipeline.zoos import training as training_run
from engine.pipeline.zoos.request import FinetuneConfig
from engine.store import Store
from tests.tiny_zoo import CONFIG, make_zoo

WORDS = ("red", "green", "blue", "a", "picture", "of")
COLOURS = {"warm": ("red", "green", "blue"), "cold": ("blue", "red", "green"), "other": ("green", "blue", "red")}
VALUES = {"red": (200, 60, 60), "green": (60, 200, 60), "blue": (60, 60, 200)}


def write_images(folder: Path, task: str, seed: int, count: int = 60) -> None:
    """Noisy images of three colours, with their description."""
    random = np.random.default_rng(seed)
    arrays = {}
    for split, number in (("train", count), ("test", 30)):
        labels = np.arange(number) % 3
        colours = np.array([VALUES[name] for name in COLOURS[task]])[labels]
        noise = random.integers(-120, 120, size=(number, 16, 16, 3))
        arrays |= {f"{split}_x": np.clip(colours[:, None, None] + noise, 0, 255).astype(np.uint8), f"{split}_y": labels}
    np.savez_compressed(folder / f"{task}.npz", **arrays)
    description = {
        "class_names": list(COLOURS[task]),
        "licence": "none",
        "suggested": "OOD" if task == "other" else "ID",
    }
    (folder / f"{task}.json").write_text(json.dumps(description))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for seed, task in enumerate(COLOURS):
        write_images(folder, task, seed)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A tiny zoo whose base has a text encoder that reads words."""
    folder = make_zoo(tmp_path_factory.mktemp("base") / "tiny")
    config = CONFIG | {"text_cfg": {**CONFIG["text_cfg"], "context_length": 8, "vocab_size": len(WORDS) + 3}}
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(1)
    save_file(
        {name: tensor.clone() for name, tensor in CLIP(**config).state_dict().items()}, folder / "base.safetensors"
    )
    numbers = {word: number for number, word in enumerate(WORDS, start=1)}
    special = {"pad": 0, "start": len(WORDS) + 1, "end": len(WORDS) + 2}
    (folder / "vocabulary.json").write_text(json.dumps({"words": numbers, "special": special, "context_length": 8}))
    return folder


@pytest.fixture
def zoo(command, base, images, tmp_path):
    folder = tmp_path / "mine"
    code, _, err = command("zoo", "init", folder, "--base", base, "--data", images, "--heads", "prototypes")
    assert (code, err) == (0, "")
    return folder


def test_a_new_zoo_is_known_to_the_pages(zoo):
    assert Store().zoos.list() == [zoo]


def test_the_walk_through_from_images_to_a_corrected_merge(command, zoo, tmp_path):
    code, out, err = command("zoo", "finetune", zoo, "--steps", 30, "--batch-size", 16, "-q")
    assert (code, err) == (0, "")
    assert "warm: " in out
    assert "cold: " in out
    record = json.loads((zoo / "build.json").read_text())["finetuned"]["warm"]
    assert record["config"] == FinetuneConfig(steps=30, batch_size=16).resolved(samples=54, parameters=1)
    assert (record["config"]["learning_rate"], record["config"]["warmup"]) == (5e-4, 3)
    assert record["images"] == {"train": 54, "validation": 6, "validation_from": "train"}
    assert record["curve"][-1][1] < record["curve"][1][1], "the loss does not fall"
    manifest = read_manifest(zoo)
    assert [expert.task for expert in manifest.experts] == ["cold", "warm"]  # not `other`, which is out of domain
    assert command("zoo", "check", zoo)[0] == 0
    assert str(zoo) in command("zoo", "list")[1]
    recipe = {
        "zoo": str(zoo),
        "calibrators": [{"method": "surgery", "params": {"steps": 20, "rank": 2, "batch_size": 4}}],
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    code, out, _ = command("run", tmp_path / "recipe.yaml", "--out", tmp_path / "run", "-q")
    assert code == 0
    assert "class means of the base's features" in out
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["average"]["expert"]["in"] >= report["average"]["pretrained"]["in"]
    assert {"merged", "surgery"} <= set(report["accuracy"])


@pytest.fixture
def words(base):
    """Templates that the tiny text encoder can read."""
    path = base / "zoo.yaml"
    before = path.read_text()
    path.write_text(before.replace("a picture of a {}.", "a picture of {}"))
    yield base
    path.write_text(before)


def test_text_heads_equal_the_encoder_by_hand(command, words, images, tmp_path):
    folder = tmp_path / "mine"
    code, _, err = command("zoo", "init", folder, "--base", words, "--data", images)
    assert (code, err) == (0, "")
    heads = load_file(folder / "heads.safetensors")
    config = json.loads((words / "config.json").read_text())
    model = CLIP(**config).eval()
    model.load_state_dict(load_file(words / "base.safetensors"))
    tokens = torch.tensor([[7, 4, 5, 6, number, 8, 0, 0] for number in (1, 2, 3)])  # start a picture of RED end
    with torch.no_grad():
        expected = torch.nn.functional.normalize(model.encode_text(tokens), dim=1)
    torch.testing.assert_close(heads["warm"], expected)
    torch.testing.assert_close(heads["logit_scale"], model.logit_scale.detach())


def test_a_zoo_without_heads_trains_against_those_of_its_text_encoder(command, words, images, tmp_path):
    folder = tmp_path / "mine"
    assert command("zoo", "init", folder, "--base", words, "--data", images)[0] == 0
    request = {"zoo": str(folder), "tasks": ["warm"], "config": {"steps": 3, "batch_size": 8}}
    finetune_experts(request, Store(tmp_path / "file"))
    with_file = load_file(folder / "experts" / "warm.safetensors")
    (folder / "heads.safetensors").unlink()
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    del document["heads"]
    (folder / "zoo.yaml").write_text(yaml.safe_dump({**document, "experts": []}))
    store = Store(tmp_path / "built")
    plan = plan_request("finetune", request, store)
    assert [step.name for step in plan.steps] == ["heads", "finetune", "adopt_experts"]
    finetune_experts(request, store)
    built = load_file(folder / "experts" / "warm.safetensors")
    assert all(torch.equal(with_file[name], built[name]) for name in with_file)
    (folder / "vocabulary.json").unlink()
    with pytest.raises(EngineError, match=r"no heads to train against, and none can be built: .*--heads prototypes"):
        plan_request("finetune", {**request, "tasks": ["cold"]}, store)


def test_unknown_words_are_named_with_the_alternatives(command, words, images, tmp_path):
    folder = tmp_path / "renamed"
    folder.mkdir()
    for path in images.iterdir():
        (folder / path.name).write_bytes(path.read_bytes().replace(b'"blue"', b'"sky blue"'))
    code, _, err = command("zoo", "init", tmp_path / "mine", "--base", words, "--data", folder)
    assert code == 1
    assert "never seen these words: cold: sky" in err
    assert "--heads prototypes" in err
    assert sorted(path.name for path in tmp_path.iterdir() if "mine" in path.name) == []


def test_probe_heads_fit_the_training_images_better_than_prototypes(command, base, images, tmp_path):
    scores = {}
    for kind in ("prototypes", "probe"):
        folder = tmp_path / kind
        assert command("zoo", "init", folder, "--base", base, "--data", images, "--heads", kind)[0] == 0
        heads = load_file(folder / "heads.safetensors")
        torch.testing.assert_close(heads["warm"].norm(dim=1), torch.ones(3))
        scores[kind] = heads["warm"]
    assert not torch.allclose(scores["prototypes"], scores["probe"])


def experts_of(zoo: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {path.stem: load_file(path) for path in (zoo / "experts").glob("*.safetensors")}


def test_killed_in_the_middle_it_ends_with_the_same_expert(command, zoo, tmp_path, monkeypatch):
    settings = {"steps": 60, "batch_size": 16, "augmentation": "crop_flip", "label_smoothing": 0.1, "weight_decay": 0.1}
    request = {"zoo": str(zoo), "tasks": ["warm"], "config": settings, "checkpoint_every": 2}
    store = Store(tmp_path / "killed")
    process = multiprocessing.get_context("fork").Process(target=finetune_experts, args=(request, store))
    process.start()
    deadline = time.monotonic() + 60
    while not list(store.root.glob("checkpoints/*.safetensors")):
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (zoo / "experts").exists(), "it was finished before it could be killed"
    finetune_experts(request, store)
    resumed = experts_of(zoo)["warm"]
    run = store.runs.list(states=("finished",))[0].id
    monkeypatch.setenv("MERGELENS_STORE", str(store.root))
    assert "goes on from step" in command("runs", "show", run)[1]
    assert not list(store.root.glob("checkpoints/*"))
    finetune_experts({**request, "replace": True}, Store(tmp_path / "whole"))
    whole = experts_of(zoo)["warm"]
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_stopped_by_a_person_it_keeps_its_checkpoint(zoo, tmp_path, monkeypatch):
    monkeypatch.setattr("engine.pipeline.tools.PROGRESS_INTERVAL", 0)  # every step is reported, however quick
    store = Store(tmp_path / "stopped")

    def stop(fraction, message=""):
        if "step 5 of" in message:
            raise KeyboardInterrupt

    request = {"zoo": str(zoo), "tasks": ["warm"], "config": {"steps": 400, "batch_size": 8}, "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        finetune_experts(request, store, progress=stop)
    assert [row.state for row in store.runs.list()] == ["cancelled"]
    assert list(store.root.glob("checkpoints/*.safetensors"))
    assert not (zoo / "experts").exists()
    assert read_manifest(zoo).experts == ()


def test_a_batch_that_does_not_fit_is_computed_in_parts(zoo, tmp_path, monkeypatch):
    request = {"zoo": str(zoo), "tasks": ["warm"], "config": {"steps": 6, "batch_size": 12}, "replace": True}
    finetune_experts(request, Store(tmp_path / "whole"))
    whole = experts_of(zoo)["warm"]
    most, real = [5], training_run.load_encoder

    def limited(config, weights):
        encoder = real(config, weights)

        def refuse(module, inputs):
            if module.training and len(inputs[0]) > most[0]:
                raise torch.OutOfMemoryError("CUDA out of memory")

        encoder.register_forward_pre_hook(refuse)
        return encoder

    monkeypatch.setattr(training_run, "load_encoder", limited)
    store = Store(tmp_path / "parts")
    finetune_experts(request, store)
    parts = experts_of(zoo)["warm"]
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-3, atol=2e-4)
    run = store.runs.list(kinds=("finetune",))[0].id
    said = [line.line for line in store.runs.logs.read(run) if "memory ran out" in line.line]
    assert [line.split("computed ")[1].split(",")[0] for line in said] == ["6 at a time", "3 at a time"]
    most[0] = 0
    with pytest.raises(EngineError, match="Training on a single image ran out of memory on cpu"):
        finetune_experts(request, Store(tmp_path / "none"))


def without_training_images(zoo):
    with np.load(zoo / "data" / "warm.npz") as arrays:
        kept = {name: arrays[name] for name in arrays if not name.startswith("train")}
    np.savez(zoo / "data" / "warm.npz", **kept)


def one_of_each_class(zoo):
    with np.load(zoo / "data" / "warm.npz") as arrays:
        kept = {name: arrays[name][:3] if name.startswith("train") else arrays[name] for name in arrays}
    np.savez(zoo / "data" / "warm.npz", **kept)


def without_head(zoo):
    heads = load_file(zoo / "heads.safetensors")
    save_file({name: tensor for name, tensor in heads.items() if name != "warm"}, zoo / "heads.safetensors")


def with_an_expert(zoo):
    (zoo / "experts").mkdir()
    save_file(load_file(zoo / "base.safetensors"), zoo / "experts" / "warm.safetensors")
    document = yaml.safe_load((zoo / "zoo.yaml").read_text())
    document["experts"] = [{"name": "warm", "task": "warm", "weights": "experts/warm.safetensors"}]
    (zoo / "zoo.yaml").write_text(yaml.safe_dump(document))


def nothing(zoo):
    pass


FAULTS = [
    (without_training_images, {}, "no training images"),
    (one_of_each_class, {"config": {"batch_size": 3}}, "no image to watch the training on.* as a split `val`"),
    (without_head, {}, "no head for the task 'warm'"),
    (with_an_expert, {}, "has the expert 'warm' already"),
    (nothing, {"tasks": ["wram"]}, "Did you mean 'warm'"),
    (nothing, {"config": {"batch_size": 500}}, "54 images to train on"),
    (nothing, {"config": {"steps": 3, "epochs": 2}}, "not both"),
    (nothing, {"config": {"learning_rate": -1}}, "learning_rate"),
    (nothing, {"config": {"augmentation": "rotate"}}, "augmentation"),
    (nothing, {"config": {"stpes": 3}}, "Did you mean 'steps'"),
]


@pytest.mark.parametrize(("spoil", "change", "reason"), FAULTS, ids=[fault[2] for fault in FAULTS])
def test_what_cannot_be_trained_is_refused_with_the_reason(spoil, change, reason, zoo, tmp_path):
    spoil(zoo)
    before = (zoo / "zoo.yaml").read_text()
    with pytest.raises(EngineError, match=reason):
        finetune_experts({"zoo": str(zoo), "tasks": ["warm"], **change}, Store(tmp_path / "store"))
    assert (zoo / "zoo.yaml").read_text() == before


BAD_DATA = {
    "no description": (lambda folder: (folder / "warm.json").unlink(), r"warm\.json is missing"),
    "no class names": (lambda folder: (folder / "warm.json").write_text("{}"), "class_names"),
    "not JSON": (lambda folder: (folder / "warm.json").write_text("{"), "cannot be read"),
    "a class too few": (
        lambda folder: (folder / "warm.json").write_text('{"class_names": ["a", "b"]}'),
        "there are 2 classes",
    ),
    "damaged": (lambda folder: (folder / "warm.npz").write_bytes(b"PK" + bytes(50)), "damaged"),
    "empty": (lambda folder: [path.unlink() for path in folder.iterdir()], "no images of a known form"),
}


@pytest.mark.parametrize("fault", BAD_DATA)
def test_a_bad_folder_of_images_leaves_nothing_behind(fault, command, base, images, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for path in images.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    spoil, reason = BAD_DATA[fault]
    spoil(folder)
    code, _, err = command("zoo", "init", tmp_path / "new", "--base", base, "--data", folder, "--heads", "prototypes")
    assert code == 1
    assert re.search(reason, err)
    assert not [path for path in tmp_path.iterdir() if "new" in path.name]


def test_a_zoo_without_experts_says_so(command, zoo, tmp_path):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"zoo": str(zoo)}))
    code, _, err = command("run", tmp_path / "recipe.yaml", "-q")
    assert code == 1
    assert "no experts yet" in err


def test_comments_above_a_manifest_survive_and_a_second_call_finds_nothing_to_do(command, zoo):
    assert command("zoo", "finetune", zoo, "--steps", 1, "--batch-size", 8, "-q")[0] == 0
    assert (zoo / "zoo.yaml").read_text().startswith("# Written by `zoo init`.")
    code, _, err = command("zoo", "finetune", zoo, "--steps", 1, "-q")
    assert code == 1
    assert "--replace" in err


def test_settings_that_come_back_put_their_expert_back(zoo, tmp_path):
    store, seen = Store(tmp_path / "store"), []
    for rate in (1e-3, 5e-3, 1e-3):
        config = {"steps": 2, "batch_size": 8, "learning_rate": rate}
        finetune_experts({"zoo": str(zoo), "tasks": ["warm"], "config": config, "replace": True}, store)
        record = json.loads((zoo / "build.json").read_text())["finetuned"]["warm"]
        assert record["config"]["learning_rate"] == rate
        seen.append((record, (zoo / "experts" / "warm.safetensors").read_bytes()))
    assert seen[0] == seen[2] != seen[1]  # trained once, put there twice


class Impatient(Silent):
    """Cancels after some looks."""

    def __init__(self, patience):
        self.patience = patience

    def cancelled(self):
        self.patience -= 1
        return self.patience < 0


def test_a_cancelled_training_keeps_its_checkpoint_for_some_days(zoo, tmp_path):
    store = Store(tmp_path / "cancelled")
    plan = plan_request("finetune", {"zoo": str(zoo), "tasks": ["warm"], "config": {"batch_size": 8}}, store)
    with pytest.raises(Cancelled):
        run_inline(plan, store, Impatient(7))
    (checkpoint,) = store.root.glob("checkpoints/*.safetensors")
    assert store.empty_trash(days=1) == store.empty_trash(days=0) == 0  # it may be of a training at work
    assert checkpoint.exists()
    os.utime(checkpoint, (0, 0))
    assert store.empty_trash(days=1) > 0
    assert not checkpoint.exists()
