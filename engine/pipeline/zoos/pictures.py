"""Registering the images of a task: small pictures of a sample of every class, and how many there are of each.

Free of torch: pages import its names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from ...errors import DataError, EngineError, ZooError, nearest
from ...recipe import Probe, explain
from ...store import Store
from ...zoo.folder import Zoo
from ...zoo.images.data import TaskData
from ...zoo.images.readers.source import LABELLED
from ...zoo.images.splits import select
from ...zoo.images.thumbnails import SIDE
from ..steps import Plan, make_step

if TYPE_CHECKING:
    from ..steps import StepTools

VERSION = 1
MOST = 4000  # pictures of a split
CHUNK = 256
COUNTS = "counts.json"  # file with images by split and class, seed and notes
PER_CLASS = 24  # pictures of a class in a gallery
SEED = 0  # of the sample


def plan_register(request: Mapping[str, Any], store: Store) -> Plan:
    """Plan the pictures of one task.

    Args:
        request: ``zoo``, ``task``, ``per_class`` (pictures of a class; null: of test images, of those that ``probe``
            selects or of all), ``seed``; anything else in it only tells requests apart.
        store: gives digests.

    Raises:
        EngineError: no such task, or its data cannot be used.
    """
    zoo, name = Zoo.open(str(request.get("zoo", ""))), str(request.get("task", ""))
    if name not in zoo.data:
        raise ZooError(f"The zoo '{zoo.manifest.name}' has no task '{name}' with data. {nearest(name, zoo.data)}")
    per_class, seed = request.get("per_class"), request.get("seed", 0)
    if not (per_class is None or (isinstance(per_class, int) and 0 < per_class <= MOST)) or not isinstance(seed, int):
        raise EngineError(f"Pictures of a class are asked for as a number up to {MOST}, or null for all; so is a seed.")
    data = zoo.data[name]
    identity = {
        "task": name,
        "classes": list(data.task.classes),
        "data": data.digest(store.digest_file),
        "per_class": per_class,
        "seed": seed,
        "side": SIDE,
    }
    if per_class is None and request.get("probe") is not None:
        identity["probe"] = _probe(request["probe"]).model_dump(mode="json")
    step = make_step(
        "register",
        params={**identity, "sources": {"zoo": str(request["zoo"])}},
        identity=identity,
        label=f"Looking at the images of {data.task.label}",
        version=VERSION,
    )
    return Plan((step,), step.key, step.key)


def register(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Write pictures and counts.

    For every split ``SPLIT.pictures.npy`` uint8 (n, side, side, 3), ``SPLIT.rows.npy`` and ``SPLIT.labels.npy`` (n,);
    and ``counts.json``: images by split and class, the seed of the sample, what a person should know.
    """
    data = Zoo.open(params["sources"]["zoo"]).data[params["task"]]
    everything = params["per_class"] is None
    splits = ["test"] if everything else [split for split in data.lengths if data.has(split)]
    counts: dict[str, Any] = {}
    for number, split in enumerate(splits):
        labels = data.labels(split) if split in LABELLED else np.full(data.lengths[split], -1)
        counts[split] = np.bincount(labels[labels >= 0], minlength=len(params["classes"])).tolist()
        rows = _looked_at(data, params) if everything else sample(labels, params["per_class"], params["seed"])
        part = tools.part(number / len(splits), (number + 1) / len(splits))
        _write(data, split, rows, params["side"], output, part)
        np.save(output / f"{split}.rows.npy", rows)
        np.save(output / f"{split}.labels.npy", labels[rows])
    document = {
        "lengths": {split: data.lengths[split] for split in data.lengths},
        "counts": counts,
        "seed": params["seed"],
        "notes": list(data.notes),
    }
    (output / COUNTS).write_text(json.dumps(document), "utf-8")


def sample(labels: np.ndarray, per_class: int, seed: int) -> np.ndarray:
    """Rows of at most so many images of every class, sorted; fewer where there are very many classes."""
    generator = np.random.default_rng(seed)
    present = np.unique(labels)
    each = max(1, min(per_class, MOST // max(1, len(present))))
    parts = [generator.permutation(np.flatnonzero(labels == label))[:each] for label in present]
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def pictures_at(folder: Path, rows: np.ndarray) -> np.ndarray:
    """Pictures of test images by their rows: uint8 (n, side, side, 3).

    Raises:
        DataError: there is none of a row.
    """
    known = np.load(folder / "test.rows.npy")
    places = np.searchsorted(known, rows)
    if len(rows) and (places.max() >= len(known) or (known[places] != rows).any()):
        raise DataError("The registered pictures are of other images than the run's. Run the recipe again.")
    return np.asarray(np.load(folder / "test.pictures.npy", mmap_mode="r")[places])


def _looked_at(data: TaskData, params: Mapping[str, Any]) -> np.ndarray:
    """Rows of test images that a probe selects, else all."""
    if "probe" not in params:
        return np.arange(data.lengths["test"])
    return np.sort(select(data, _probe(params["probe"])).test)


def _probe(document: Any) -> Probe:
    try:
        return Probe.model_validate(document)
    except ValidationError as error:
        raise EngineError(f"The probe cannot be used: {explain(error, Probe)}") from error


def _write(data: TaskData, split: str, rows: np.ndarray, side: int, output: Path, progress: Any) -> None:
    """Pictures in the order of the rows, straight to disk."""
    shape = (len(rows), side, side, 3)
    sheet = np.lib.format.open_memmap(output / f"{split}.pictures.npy", "w+", np.uint8, shape)
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        for place, picture in enumerate(data.pictures(split, part, side)):
            sheet[start + place] = picture
        progress((start + len(part)) / len(rows), f"{split} image {start + len(part):,} of {len(rows):,}")
    sheet.flush()
