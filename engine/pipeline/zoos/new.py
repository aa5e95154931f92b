"""A new zoo from a base and samples of any form: brought data, heads, and a manifest without experts."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from torch.nn import functional

from ...errors import DataError, ZooError, nearest
from ...features import choose_device, encode
from ...manifest import Manifest
from ...recipe import explain
from ...weights import Memory, write_weights
from ...zoo.brought_task import BroughtTask
from ...zoo.encoders.architecture import VOCABULARY
from ...zoo.encoders.backbone import architecture, load_encoder, preprocessing
from ...zoo.encoders.heads import HEADS_KEY, starting_logit_scale
from ...zoo.encoders.text import Words, build_heads, prompts, vocabulary_file
from ...zoo.folder import Zoo
from ...zoo.images.splits import VALIDATION_SHARE, hold_out
from ...zoo.making.prompts import asked_prompts, sets_in_words, wish_in_words
from ...zoo.names import safe_name

PROBE_STEPS, PROBE_RATE = 200, 0.01
HEADS = {
    "text": "Heads: zero-shot, from the base's text encoder.",
    "prototypes": "Heads: class means of the base's features on training {many}, not zero-shot.",
    "probe": "Heads: a linear probe on the base's features of training {many}, not zero-shot.",
}
HEADER = "# Written by `zoo init`. Train experts with `zoo finetune`, then check the folder with `zoo check`.\n"
Say = Callable[[str], None]


@dataclass(frozen=True)
class NewZooOptions:
    """Settings of a new zoo."""

    heads: str = ""  # text, prototypes or probe; '' takes text where the base has a text encoder, else prototypes
    outside: Sequence[str] = ()  # tasks out of domain, beside those whose description says so
    test_share: float | None = None  # of samples without splits that are tested on; None keeps all of them for that
    seed: int = 0  # of that choice
    skip_corrupt: bool = False  # leave out images that cannot be decoded, and texts that hold no word
    link: bool = False  # hard links in place of copies of files
    templates: str = ""  # of text heads: a published set's name, or a file of own ones


def new_zoo(
    folder: Path, base: str, data: Path, options: NewZooOptions = NewZooOptions(), *, say: Say = lambda text: None
) -> list[str]:
    """Make a zoo without experts.

    Args:
        folder: the new zoo; must not exist, or be empty.
        base: a bundled zoo's name or a zoo's path; its base, architecture, preprocessing and vocabulary are taken.
        data: samples of one task in any form, or a folder of such, with ``TASK.json`` beside those that need a
            description (``class_names``; optional ``title``, ``templates``, ``licence``, ``source``, ``suggested``: ID
            or OOD); see :meth:`engine.zoo.modality.Modality.find_tasks`.
        options: heads, domains and splits.
        say: told what is being done.

    Returns:
        One line for each task.

    Raises:
        EngineError: the reason; nothing is left behind then.
    """
    if options.heads and options.heads not in HEADS:
        raise ZooError(f"There are no heads '{options.heads}'. {nearest(options.heads, HEADS)}")
    folder = folder.expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ZooError(f"{folder} exists already and is not an empty folder; nothing was written. Give a new folder.")
    source = Zoo.open(base)
    options = replace(options, heads=_heads(source, options.heads))
    tasks, left = source.modality.find_tasks(data)
    if left:
        say(f"Left out, because there are no {source.modality.many} in them: {', '.join(left)}")
    entries = _entries(tasks, source, options)
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.tmp")
    try:
        building.mkdir()
        for task, entry in zip(tasks, entries, strict=True):
            say(f"Bringing the {source.modality.many} of {task.name}")
            entry["data"] = _bring(source, task, entry, building, options, say)
        manifest = _write(building, folder.name, source, entries, options)
        if whose := manifest.backbone.origins.get("templates"):
            say(f"Templates: {whose}")
        zoo = Zoo(building, manifest)
        say(f"Building heads ({options.heads}) for {len(entries)} tasks")
        _write_heads(zoo, source, options.heads)
        lines = [line for task in manifest.tasks for line in _lines(zoo, task.name)]
        if folder.exists():
            folder.rmdir()
        building.rename(folder)
    except OSError as error:
        raise ZooError(f"{folder} cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return lines


def _heads(source: Zoo, kind: str) -> str:
    """Return which heads a new zoo gets.

    Raises:
        ZooError: the base's models give no features, or it has no text encoder for heads of class names.
    """
    name, modality = source.manifest.name, source.modality
    if modality.answers(source.manifest):
        raise ZooError(
            f"The models of '{name}' rank written answers and give no features that a head could be made of."
        )
    if kind == "text" and not modality.worded:
        raise ZooError(
            f"'{name}' is a zoo of {modality.many}, where no head is built of class names. Take --heads prototypes or "
            "--heads probe."
        )
    return kind or ("text" if modality.worded else "prototypes")


def _entries(tasks: Sequence[BroughtTask], source: Zoo, options: NewZooOptions) -> list[dict[str, Any]]:
    names = [task.name for task in tasks]
    for name in options.outside:
        if name not in names:
            raise DataError(f"There is no task '{name}' among the {source.modality.many}. {nearest(name, names)}")
    asked = asked_prompts(options.templates)
    asked.check(names)
    if options.templates and not source.modality.worded:
        raise ZooError(f"A zoo of {source.modality.many} has no prompts; leave --templates out.")
    own = {task.templates for task in source.manifest.tasks if not task.template_set}
    given = next(iter(own)) if len(own) == 1 else ()  # what suits the base's text encoder, where it says so
    corrupt = {"corrupt": "skip"} if options.skip_corrupt else {}
    entries = [
        {
            "name": task.name,
            "domain": "out" if task.outside or task.name in options.outside else "in",
            **task.entry(given),
            **corrupt,
        }
        for task in tasks
    ]
    return [asked.put_into(entry) for entry in entries] if source.modality.worded else entries


def _bring(
    source: Zoo, task: BroughtTask, entry: dict[str, Any], folder: Path, options: NewZooOptions, say: Say
) -> str:
    """Bring a task's samples; where all would be test samples, only a share is, if that is wished."""
    whole = not task.source.lengths.get("train") and bool(task.source.lengths.get("test"))
    learns = entry["domain"] == "in" or options.heads != "text"
    if options.test_share is None or not whole or not learns:
        return task.bring(folder, link=options.link)
    modality, share = source.modality, options.test_share
    place = modality.set_aside(task, folder, share=share, seed=options.seed, link=options.link)
    say(f"{task.name}: {100 * share:g} % of every class are set aside as test {modality.many} (seed {options.seed})")
    return place


def _write(folder: Path, name: str, source: Zoo, entries: list[dict[str, Any]], options: NewZooOptions) -> Manifest:
    """Copy the base and write zoo.yaml."""
    backbone = source.manifest.backbone.model_dump(mode="json", exclude_none=True)
    backbone.get("origins", {}).pop("templates", None)  # of other tasks
    weights = source.weights_path("base")
    backbone["weights"] = f"base{weights.suffix}"
    shutil.copyfile(weights, folder / backbone["weights"])
    if backbone["architecture"].endswith(".json"):
        shutil.copyfile(source.path(backbone["architecture"]), folder / "config.json")
        backbone["architecture"] = "config.json"
    for vocabulary in {VOCABULARY, *([tokens["vocabulary"]] if (tokens := backbone.get("tokenisation")) else [])}:
        if (source.folder / vocabulary).is_file():
            (folder / vocabulary).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.folder / vocabulary, folder / vocabulary)
    document = {
        "format": 1,
        "name": safe_name(name),
        "description": f"Base of {source.manifest.name}. {HEADS[options.heads].format(many=source.modality.many)}",
        "modality": source.manifest.modality,
        "backbone": backbone,
        "experts": [],
        "tasks": entries,
        "heads": "heads.safetensors",
    }
    try:
        manifest = Manifest.model_validate(document)
    except ValueError as error:
        raise ZooError(f"No zoo can be made of this: {explain(error, Manifest)}") from error
    if options.templates and options.heads == "text":
        whose = f"{sets_in_words(manifest.tasks)} ({wish_in_words(options.templates, manifest.tasks)})"
        backbone["origins"] = {**manifest.backbone.origins, "templates": whose}
        manifest = Manifest.model_validate(document)
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
            many = zoo.modality.many
            raise DataError(
                f"Task '{task}' has no training {many} to build a head from. Bring {many} with a split `train`, or set "
                "some aside with --test-share 0.2."
            )
    if kind == "text":
        _refuse_unknown_words(zoo)
        tensors = build_heads(zoo.folder, zoo.manifest, list(zoo.data), lambda fraction, message="": None)
    else:
        tensors = _trained_heads(zoo, source, config, kind)
    tensors["logit_scale"] = torch.tensor(starting_logit_scale(source.folder, source.manifest))
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


def _trained_heads(zoo: Zoo, source: Zoo, config: dict[str, Any], kind: str) -> dict[str, Tensor]:
    """Return heads from training samples; those that `zoo finetune` will validate on are left out."""
    device = choose_device()
    encoder = load_encoder(config, zoo.weights("base"))
    preprocess, scale = preprocessing(zoo.folder, zoo.manifest), starting_logit_scale(source.folder, source.manifest)
    heads = {}
    for task in zoo.manifest.tasks:
        data = zoo.data[task.name]
        rows, _ = hold_out(data, VALIDATION_SHARE)
        labels = torch.as_tensor(data.labels("train")[rows])
        absent = [name for number, name in enumerate(task.classes) if number not in labels.unique().tolist()]
        if absent:
            raise DataError(f"Task '{task.name}' has no training {zoo.modality.one} of {', '.join(absent[:5])}.")
        features = encode(
            encoder, data.samples("train", rows, preprocess), preprocess, device, lambda fraction, message="": None
        )
        unit = functional.normalize(features, dim=1)
        heads[task.name] = prototypes(unit, labels, len(task.classes))
        if kind == "probe":
            heads[task.name] = linear_probe(unit, labels, heads[task.name], float(torch.tensor(scale).exp()))
    return heads


def prototypes(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the class means of unit-norm features (n, dim), of unit norm again: (classes, dim)."""
    sums = torch.zeros(classes, features.shape[1]).index_add_(0, labels, features)
    return functional.normalize(sums, dim=1)


def linear_probe(features: Tensor, labels: Tensor, start: Tensor, scale: float) -> Tensor:
    """Return a classifier with unit-norm rows (classes, dim), fitted by Adam to unit-norm features (n, dim).

    It begins at ``start`` (classes, dim) and is trained like it will be used: cosines times ``scale``, no bias.
    """
    weight = start.clone().requires_grad_(True)
    adam = torch.optim.Adam([weight], lr=PROBE_RATE)
    for _ in range(PROBE_STEPS):
        adam.zero_grad()
        functional.cross_entropy(scale * features @ functional.normalize(weight, dim=1).T, labels).backward()
        adam.step()
    return functional.normalize(weight.detach(), dim=1)


def _lines(zoo: Zoo, task: str) -> list[str]:
    """Describe a task in a sentence, and what a person should know of its data."""
    data, entry = zoo.data[task], zoo.manifest.task_table[task]
    counts = ", ".join(f"{count} {split}" for split, count in data.lengths.items())
    place = "in domain" if entry.domain == "in" else "out of domain"
    lines = [f"{task} ({place}): {counts} {zoo.modality.many}, {len(entry.classes)} classes", *data.notes]
    if skipped := data.skipped():
        lines.append(skipped)
    lines += data.remarks()
    if entry.domain == "in" and not data.has("train"):
        lines.append(
            f"{task} has no training {zoo.modality.many}, so no expert can be trained on it (--test-share sets some "
            "aside)."
        )
    return lines
