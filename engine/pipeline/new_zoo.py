"""A new zoo from a base and a folder of images: copied data, heads, and a manifest without experts."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from torch.nn import functional

from ..errors import DataError, ZooError, nearest
from ..features import choose_device, encode
from ..manifest import Manifest
from ..recipe import explain
from ..weights import Memory, write_weights
from ..zoo.backbone import architecture, load_encoder, preprocessing
from ..zoo.folder import Zoo
from ..zoo.heads import HEADS_KEY, base_logit_scale
from ..zoo.splits import VALIDATION_SHARE, hold_out
from ..zoo.text import VOCABULARY, Words, build_heads, prompts, vocabulary_file

MAX_DESCRIPTION_BYTES = 1_000_000
DEFAULT_TEMPLATES = ("a photo of a {}.",)
PROBE_STEPS, PROBE_RATE = 200, 0.01
HEADS = {
    "text": "Heads: zero-shot, from the base's text encoder.",
    "prototypes": "Heads: class means of the base's features on training images, not zero-shot.",
    "probe": "Heads: a linear probe on the base's features of training images, not zero-shot.",
}
HEADER = "# Written by `zoo init`. Train experts with `zoo finetune`, then check the folder with `zoo check`.\n"
Say = Callable[[str], None]


def new_zoo(
    folder: Path,
    base: str,
    data: Path,
    *,
    heads: str = "text",
    outside: Sequence[str] = (),
    say: Say = lambda text: None,
) -> list[str]:
    """Make a zoo without experts.

    Args:
        folder: the new zoo; must not exist, or be empty.
        base: a bundled zoo's name or a zoo's path; its base, architecture, preprocessing and vocabulary are taken.
        data: holds ``TASK.npz`` (train_x, train_y, test_x, test_y …) and ``TASK.json`` (``class_names``; optional
            ``title``, ``templates``, ``licence``, ``source``, ``suggested``: ID or OOD).
        heads: ``text``, ``prototypes`` or ``probe``.
        outside: tasks that are out of domain, beside those whose description says so.
        say: told what is being done.

    Returns:
        One line for each task.

    Raises:
        EngineError: the reason; nothing is left behind then.
    """
    if heads not in HEADS:
        raise ZooError(f"There are no heads '{heads}'. {nearest(heads, HEADS)}")
    folder = folder.expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ZooError(f"{folder} exists already and is not an empty folder; nothing was written. Give a new folder.")
    source = Zoo.open(base)
    entries = _entries(data, source, outside)
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.tmp")
    try:
        building.mkdir()
        manifest = _write(building, folder.name, source, data, entries, heads)
        zoo = Zoo(building, manifest)
        say(f"Building heads ({heads}) for {len(entries)} tasks")
        _write_heads(zoo, source, heads)
        lines = [_line(zoo, task.name) for task in manifest.tasks]
        if folder.exists():
            folder.rmdir()
        building.rename(folder)
    except OSError as error:
        raise ZooError(f"{folder} cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return lines


def _entries(data: Path, source: Zoo, outside: Sequence[str]) -> list[dict[str, Any]]:
    files = sorted(data.glob("*.npz")) if data.is_dir() else []
    if not files:
        raise DataError(f"{data} holds no .npz files; one for each task, with a .json of the same name, is expected.")
    names = [file.stem for file in files]
    for name in outside:
        if name not in names:
            raise DataError(f"{data} holds no task '{name}'. {nearest(name, names)}")
    given = next((list(task.templates) for task in source.manifest.tasks if task.templates), list(DEFAULT_TEMPLATES))
    return [_entry(file, _description(file.with_suffix(".json")), given, file.stem in outside) for file in files]


def _entry(file: Path, found: dict[str, Any], templates: list[str], outside: bool) -> dict[str, Any]:
    classes = found.get("class_names", found.get("classes"))
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise DataError(f"{file.with_suffix('.json').name} lists no `class_names`; one name for each label is needed.")
    out = outside or str(found.get("suggested", "")).upper() == "OOD" or found.get("domain") == "out"
    return {
        "name": file.stem,
        "title": str(found.get("title", "")),
        "domain": "out" if out else "in",
        "data": f"data/{file.name}",
        "classes": classes,
        "templates": found.get("templates", templates),
        "source": str(found.get("source", found.get("original", ""))),
        "licence": str(found.get("licence", found.get("license", ""))),
    }


def _description(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_DESCRIPTION_BYTES:
            raise DataError(f"{path.name} is too large for a description.")
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; it must list the `class_names` of the images beside it.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    return found if isinstance(found, dict) else {}


def _write(folder: Path, name: str, source: Zoo, data: Path, entries: list[dict[str, Any]], heads: str) -> Manifest:
    """Copy the base and the data and write zoo.yaml."""
    backbone = source.manifest.backbone.model_dump(mode="json", exclude_none=True)
    weights = source.weights_path("base")
    backbone["weights"] = f"base{weights.suffix}"
    shutil.copyfile(weights, folder / backbone["weights"])
    if backbone["architecture"].endswith(".json"):
        shutil.copyfile(source.path(backbone["architecture"]), folder / "config.json")
        backbone["architecture"] = "config.json"
    if (source.folder / VOCABULARY).is_file():
        shutil.copyfile(source.folder / VOCABULARY, folder / VOCABULARY)
    (folder / "data").mkdir()
    for entry in entries:
        shutil.copyfile(data / Path(entry["data"]).name, folder / entry["data"])
    document = {
        "format": 1,
        "name": name,
        "description": f"Base of {source.manifest.name}. {HEADS[heads]}",
        "backbone": backbone,
        "experts": [],
        "tasks": entries,
        "heads": "heads.safetensors",
    }
    try:
        manifest = Manifest.model_validate(document)
    except ValueError as error:
        raise ZooError(f"No zoo can be made of this: {explain(error, Manifest)}") from error
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
    (folder / "zoo.yaml").write_text(HEADER + text, "utf-8")
    return manifest


def _write_heads(zoo: Zoo, source: Zoo, kind: str) -> None:
    config = architecture(zoo.folder, zoo.manifest)
    for task, data in zoo.data.items():
        for split in ("test", "train", "val"):
            if data.has(split):
                data.labels(split)
        if kind != "text" and not data.has("train"):
            raise DataError(f"Task '{task}' has no training images (train_x, train_y) to build a head from.")
    if kind == "text":
        _refuse_unknown_words(zoo)
        tensors = build_heads(zoo.folder, zoo.manifest, list(zoo.data), lambda fraction, message="": None)
    else:
        tensors = _trained_heads(zoo, config, kind)
    tensors["logit_scale"] = torch.tensor(base_logit_scale(zoo.folder, zoo.manifest))
    write_weights(zoo.folder / "heads.safetensors", Memory(tensors), metadata={HEADS_KEY: kind})


def _refuse_unknown_words(zoo: Zoo) -> None:
    """Name all words at once that a text encoder of whole words has never seen."""
    path = vocabulary_file(zoo.folder, zoo.manifest)
    if path is None:
        return
    words = Words(path)
    missing = {
        task.name: words.unknown([text for texts in prompts(task) for text in texts]) for task in zoo.manifest.tasks
    }
    if any(missing.values()):
        named = "; ".join(f"{task}: {', '.join(found)}" for task, found in missing.items() if found)
        raise ZooError(
            f"The base's text encoder has never seen these words: {named:.2000}. Rename the classes, or build heads "
            "from training images with --heads prototypes or --heads probe."
        )


def _trained_heads(zoo: Zoo, config: dict[str, Any], kind: str) -> dict[str, Tensor]:
    """Heads from training images; those that `zoo finetune` will validate on are left out."""
    device = choose_device()
    encoder = load_encoder(config, zoo.weights("base"))
    preprocess, scale = preprocessing(zoo.folder, zoo.manifest), base_logit_scale(zoo.folder, zoo.manifest)
    heads = {}
    for task in zoo.manifest.tasks:
        data = zoo.data[task.name]
        rows, _ = hold_out(data, VALIDATION_SHARE)
        labels = torch.as_tensor(data.labels("train")[rows])
        absent = [name for number, name in enumerate(task.classes) if number not in labels.unique().tolist()]
        if absent:
            raise DataError(f"Task '{task.name}' has no training image of {', '.join(absent[:5])}.")
        features = encode(
            encoder, data.images("train", rows, preprocess), preprocess, device, lambda fraction, message="": None
        )
        unit = functional.normalize(features, dim=1)
        heads[task.name] = prototypes(unit, labels, len(task.classes))
        if kind == "probe":
            heads[task.name] = linear_probe(unit, labels, heads[task.name], float(torch.tensor(scale).exp()))
    return heads


def prototypes(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Class means of unit-norm features (n, dim), of unit norm again: (classes, dim)."""
    sums = torch.zeros(classes, features.shape[1]).index_add_(0, labels, features)
    return functional.normalize(sums, dim=1)


def linear_probe(features: Tensor, labels: Tensor, start: Tensor, scale: float) -> Tensor:
    """A classifier with unit-norm rows (classes, dim), fitted by Adam to unit-norm features (n, dim).

    It begins at ``start`` (classes, dim) and is trained like it will be used: cosines times ``scale``, no bias.
    """
    weight = start.clone().requires_grad_(True)
    adam = torch.optim.Adam([weight], lr=PROBE_RATE)
    for _ in range(PROBE_STEPS):
        adam.zero_grad()
        functional.cross_entropy(scale * features @ functional.normalize(weight, dim=1).T, labels).backward()
        adam.step()
    return functional.normalize(weight.detach(), dim=1)


def _line(zoo: Zoo, task: str) -> str:
    data, entry = zoo.data[task], zoo.manifest.task_table[task]
    counts = ", ".join(f"{count} {split}" for split, count in data.lengths.items())
    place = "in domain" if entry.domain == "in" else "out of domain"
    return f"{task} ({place}): {counts} images, {len(entry.classes)} classes"
