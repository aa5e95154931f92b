"""Targets of the fuzzer: true files, how they are spoiled, and everything that reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from safetensors import safe_open
from safetensors.torch import load, save_file

import engine
from engine.calibration import Surgery
from engine.catalog import resolve
from engine.catalog.calibrators import SurgeryParams
from engine.manifest import read_manifest
from engine.merging import apply
from engine.pipeline.run.weights_only import WeightsOnly
from engine.recipe import MethodCall, read_recipe
from engine.report import read_report
from engine.store import Store
from engine.weights import LazyTaskVectors, check_finite, check_same_architecture, encoder_part, open_weights
from engine.zoo.check import check_zoo
from engine.zoo.encoders.architecture import tower_size
from engine.zoo.encoders.backbone import build_encoder
from engine.zoo.encoders.heads import read_heads
from engine.zoo.folder import Zoo
from engine.zoo.images.config import text_parameters
from tests.fuzz import containers, documents
from tests.fuzz.bytes_ import damage
from tests.tiny_zoo import make_zoo

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "assets" / "examples" / "task-arithmetic-lwptv"


@dataclass(frozen=True)
class Target:
    """One kind of input."""

    prepare: Callable[[Path], None]  # makes true files in a folder
    spoil: Callable[[Path, Random, str], None]  # the folder, chance, and what a payload would make
    read: Callable[[Path], object]  # everything that the product does with them


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    """Copies, because the file is written over afterwards."""
    return dict(sorted(load(path.read_bytes()).items()))  # safetensors gives them in any order


def some_bytes(path: Path, rng: Random) -> None:
    rewrite(path, lambda data: damage(data, rng))


def write_text(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


# -- weights


def zoo(folder: Path) -> None:
    make_zoo(folder, experts=("alpha", "beta"), images=6)


def spoil_safetensors(folder: Path, rng: Random, canary: str) -> None:
    path = folder / rng.choice(("base.safetensors", "experts/alpha.safetensors"))
    if rng.random() < 0.5:
        some_bytes(path, rng)
    else:
        rewrite(path, lambda data: containers.changed_safetensors(data, rng))


def read_models(folder: Path) -> None:
    base, expert = (
        encoder_part(open_weights(folder / name)) for name in ("base.safetensors", "experts/alpha.safetensors")
    )
    check_same_architecture(base, expert, "alpha")
    check_finite(expert, "Expert 'alpha'")
    vectors = LazyTaskVectors(base, {"alpha": expert})
    for name in vectors.names:
        vectors.stack(name)


def spoil_torch(folder: Path, rng: Random, canary: str) -> None:
    path = folder / "experts" / "alpha.safetensors"
    tensors = tensors_of(path)
    kind = rng.random()
    if kind < 0.4:
        containers.changed_torch(rng, canary, tensors, path)
    elif kind < 0.5:
        path.write_bytes(containers.plain_pickle(rng, canary))
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=rng.random() < 0.6)
        if kind < 0.6 and path.read_bytes()[:2] == b"PK":
            rewrite(path, lambda data: containers.with_pickle(data, rng, canary))
        elif kind < 0.75 and path.read_bytes()[:2] == b"PK":
            rewrite(path, lambda data: containers.changed_zip(data, rng))
        else:
            some_bytes(path, rng)
    if rng.random() < 0.5:
        path.replace(folder / "experts" / "alpha.pt")
        (folder / "experts" / "alpha.pt").replace(path)


# -- the zoo's documents


def spoil_manifest(folder: Path, rng: Random, canary: str) -> None:
    path = folder / "zoo.yaml"
    if rng.random() < 0.25:
        some_bytes(path, rng)
    else:
        write_text(path, documents.changed_yaml(path.read_text(), rng))


def read_zoo(folder: Path) -> None:
    read_manifest(folder)
    opened = Zoo.open(str(folder))
    for data in opened.data.values():
        data.labels("test")
    check_zoo(str(folder), lambda fraction, message="": None)


def spoil_config(folder: Path, rng: Random, canary: str) -> None:
    path = folder / "config.json"
    if rng.random() < 0.2:
        some_bytes(path, rng)
    else:
        write_text(path, documents.changed_json(path.read_text(), rng))


def read_config(folder: Path) -> None:
    from engine.zoo.encoders.backbone import architecture, preprocessing

    opened = Zoo.open(str(folder))
    config = architecture(folder, opened.manifest)
    preprocessing(folder, opened.manifest)
    tower_size(config)
    text_parameters(config)
    build_encoder(config)
    check_zoo(str(folder), lambda fraction, message="": None)


def spoil_heads(folder: Path, rng: Random, canary: str) -> None:
    path = folder / "heads.safetensors"
    kind = rng.randrange(3)
    if kind == 0:
        some_bytes(path, rng)
    elif kind == 1:
        rewrite(path, lambda data: containers.changed_safetensors(data, rng))
    else:
        tensors = tensors_of(path)
        name = rng.choice(list(tensors))
        strange = (
            torch.zeros(3, 16),
            torch.full((3, 16), float("nan")),
            torch.zeros(0),
            torch.ones(2, 16),
            torch.ones(3, 16),
        )
        strange += (
            torch.tensor(1e30),
            torch.tensor(float("inf")),
            torch.zeros(1, 1),
            torch.ones(3, 16, dtype=torch.int64),
        )
        save_file({**tensors, name: rng.choice(strange).clone()}, path)


def read_zoo_heads(folder: Path) -> None:
    manifest = read_manifest(folder)
    read_heads(folder, manifest, list(manifest.task_table))


# -- recipes, reports, artefacts


RECIPE = {
    "zoo": "mini8",
    "experts": [{"name": "digits", "weight": 1.0}, "signs"],
    "transforms": [{"method": "lwptv", "params": {"eta": 0.7}}],
    "merge": {"method": "ties", "params": {"density": 0.2}},
    "calibrators": [
        {"name": "s", "method": "surgery", "params": {"rank": 16}},
        {"method": "interv_merge", "params": {"blocks": [0, 1]}},
    ],
    "probe": {"samples_per_task": 50, "protocol": "held_out", "split_seed": 0},
    "seeds": [0, 1],
}


def recipe(folder: Path) -> None:
    (folder / "recipe.yaml").write_text(json.dumps(RECIPE))


def spoil_recipe(folder: Path, rng: Random, canary: str) -> None:
    path = folder / "recipe.yaml"
    if rng.random() < 0.15:
        some_bytes(path, rng)
    else:
        write_text(path, documents.changed_yaml(path.read_text(), rng))


def read_recipes(folder: Path) -> None:
    resolved = resolve(read_recipe(folder / "recipe.yaml"))
    assert resolve(resolved) == resolved
    resolved.to_yaml()
    resolved.to_json()


def report(folder: Path) -> None:
    (folder / "report.json").write_bytes((EXAMPLE / "report.json").read_bytes())


def spoil_report(folder: Path, rng: Random, canary: str) -> None:
    path = folder / "report.json"
    if rng.random() < 0.3:
        some_bytes(path, rng)
    else:
        write_text(path, documents.changed_json(path.read_text(), rng))


def artefact(folder: Path) -> None:
    store = Store(folder / "store")
    with store.create("ab" * 32, step="merge", label="a merge") as place:
        (place / "merged.json").write_text('{"kind": "static"}')
        (place / "more").mkdir()
        (place / "more" / "data.bin").write_bytes(bytes(200))


def spoil_artefact(folder: Path, rng: Random, canary: str) -> None:
    place = folder / "store" / "artefacts" / "ab" / ("ab" * 32)
    kind = rng.randrange(4)
    if kind == 0:
        some_bytes(place / rng.choice(("artefact.json", "merged.json", "more/data.bin")), rng)
    elif kind == 1:
        (place / rng.choice(("merged.json", "more/data.bin", "artefact.json"))).unlink()
    elif kind == 2:
        (place / "merged.json").unlink()
        (place / "merged.json").symlink_to("/etc/passwd")
    else:
        write_text(place / "artefact.json", documents.changed_json((place / "artefact.json").read_text(), rng))


def read_artefacts(folder: Path) -> None:
    store = Store(folder / "store")
    list(store.artefacts())
    if store.find("ab" * 32) is not None:
        store.describe("ab" * 32)


# -- what is loaded in other code


def leavings(folder: Path) -> None:
    surgery = Surgery()
    surgery.reset(("alpha", "beta"), {"dim": 16}, SurgeryParams(rank=4))
    surgery.save(folder / "surgery.safetensors")
    zoo(folder / "zoo")
    from engine.zoo.metadata import describe_model

    model = describe_model(Zoo.open(str(folder / "zoo")))
    base = tensors_of(folder / "zoo" / "base.safetensors")
    save_file(base, folder / "merged.safetensors", metadata={"mergelens": json.dumps(model)})
    experts = {name: open_weights(folder / "zoo" / "experts" / f"{name}.safetensors") for name in ("alpha", "beta")}
    weights = open_weights(folder / "zoo" / "base.safetensors")
    merged = apply.merge(
        weights, LazyTaskVectors(weights, experts), (), MethodCall(method="emr"), WeightsOnly(tuple(experts))
    )
    (folder / "merged").mkdir()
    save_file(dict(merged.parts), folder / "merged" / "parts.safetensors")
    document = {"kind": "per_task", "method": "emr", "tasks": list(experts), "model": model}
    (folder / "merged" / "merged.json").write_text(json.dumps(document))


def spoil_leavings(folder: Path, rng: Random, canary: str) -> None:
    path = folder / rng.choice(
        (
            "surgery.safetensors",
            "surgery.safetensors",
            "merged.safetensors",
            "merged/merged.json",
            "merged/parts.safetensors",
        )
    )
    if rng.random() < 0.3:
        some_bytes(path, rng)
    elif path.suffix == ".json":
        write_text(path, documents.changed_json(path.read_text(), rng))
    elif rng.random() < 0.4 or path.stem == "parts":
        rewrite(path, lambda data: containers.changed_safetensors(data, rng))
    else:
        with safe_open(path, "pt") as file:
            header = file.metadata()["mergelens"]
        save_file(tensors_of(path), path, metadata={"mergelens": documents.changed_json(header, rng)})


def read_leavings(folder: Path) -> None:
    for action in (
        lambda: engine.load_calibrator(folder / "surgery.safetensors").correct(torch.zeros(2, 16), "alpha"),
        lambda: engine.load_merged(folder / "merged.safetensors")(torch.zeros(1, 3, 16, 16)),
        lambda: engine.load_merged(folder / "merged", task="alpha", base=folder / "zoo" / "base.safetensors"),
    ):
        try:
            action()
        except engine.errors.EngineError as error:
            check_message(error)


def check_message(error: Exception) -> None:
    """A refusal that a person can read: some words, no novel, no other object's innards."""
    text = str(error)
    assert 8 < len(text) < 5000, f"the message has {len(text)} characters: {text[:300]}"


# -- images: see images.py; imports: see imports.py; texts: see texts.py

from tests.fuzz import images, imports, texts  # noqa: E402

TARGETS: dict[str, Target] = {
    "safetensors": Target(zoo, spoil_safetensors, read_models),
    "torch": Target(zoo, spoil_torch, read_models),
    "manifest": Target(zoo, spoil_manifest, read_zoo),
    "config": Target(zoo, spoil_config, read_config),
    "heads": Target(zoo, spoil_heads, read_zoo_heads),
    "recipe": Target(recipe, spoil_recipe, read_recipes),
    "report": Target(report, spoil_report, read_report),
    "artefact": Target(artefact, spoil_artefact, read_artefacts),
    "leavings": Target(leavings, spoil_leavings, read_leavings),
    **{name: Target(*parts) for name, parts in images.TARGETS.items()},
    **{name: Target(*parts) for name, parts in imports.TARGETS.items()},
    **{name: Target(*parts) for name, parts in texts.TARGETS.items()},
}
