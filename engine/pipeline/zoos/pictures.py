"""Registering the images of a task: small pictures of a sample of every class, and how many there are of each.

Free of torch: pages import its names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from ...errors import DataError, ZooError, nearest
from ...recipe import Probe, Request
from ...store import Store
from ...zoo.folder import Zoo
from ...zoo.images.data import TaskData
from ...zoo.images.readers.source import LABELLED
from ...zoo.images.splits import select
from ...zoo.images.thumbnails import SIDE
from ...zoo.modalities import only_pictured
from ..graph import Plan
from ..sources import Sources
from ..steps import NoInputs, StepParams, apart, step

if TYPE_CHECKING:
    from ..tools import StepTools

MOST = 4000  # pictures of a split
CHUNK = 256
COUNTS = "counts.json"  # file with images by split and class, seed and notes
PER_CLASS = 24  # pictures of a class in a gallery
SEED = 0  # of the sample


class RegisterRequest(Request):
    """Images of a task that pictures are made of."""

    REFUSAL = "The images cannot be pictured"

    zoo: str
    task: str
    per_class: int | None = Field(None, ge=1, le=MOST)  # None: the test images that ``probe`` selects, or all
    seed: int = 0
    probe: Probe | None = None
    stamp: tuple[int, ...] = ()  # of the files: makes a changed file another request


class RegisterParams(StepParams):
    """Parameters of the register step."""

    task: str
    classes: tuple[str, ...]
    data: str  # digest
    per_class: int | None
    seed: int
    side: int
    probe: Probe | None = None
    sources: Sources = apart()


def plan_register(asked: RegisterRequest, store: Store) -> Plan:
    """Plan the pictures of one task.

    Raises:
        EngineError: no such task, or its data cannot be used.
    """
    zoo = Zoo.open(asked.zoo)
    only_pictured(zoo.manifest, "Pictures are made")
    if asked.task not in zoo.data:
        raise ZooError(
            f"The zoo '{zoo.manifest.name}' has no task '{asked.task}' with data. {nearest(asked.task, zoo.data)}"
        )
    data = zoo.data[asked.task]
    params = RegisterParams(
        task=asked.task,
        classes=tuple(data.task.classes),
        data=data.identity(store.digest_file),
        per_class=asked.per_class,
        seed=asked.seed,
        side=SIDE,
        probe=asked.probe if asked.per_class is None else None,
        sources=Sources(zoo=asked.zoo),
    )
    node = register.plan(params, label=f"Looking at the images of {data.task.label}")
    return Plan((node,), node.key)


@step("register", label="Looking at the images", params=RegisterParams)
def register(inputs: NoInputs[Path], params: RegisterParams, output: Path, tools: StepTools) -> None:
    """Write pictures and counts.

    For every split ``SPLIT.pictures.npy`` uint8 (n, side, side, 3), ``SPLIT.rows.npy`` and ``SPLIT.labels.npy`` (n,);
    and ``counts.json``: images by split and class, the seed of the sample, what a person should know.
    """
    data = params.sources.open().data[params.task]
    everything = params.per_class is None
    splits = ["test"] if everything else [split for split in data.lengths if data.has(split)]
    counts: dict[str, Any] = {}
    for number, split in enumerate(splits):
        labels = data.labels(split) if split in LABELLED else np.full(data.lengths[split], -1)
        counts[split] = np.bincount(labels[labels >= 0], minlength=len(params.classes)).tolist()
        rows = _looked_at(data, params.probe) if everything else sample(labels, params.per_class, params.seed)
        part = tools.part(number / len(splits), (number + 1) / len(splits))
        _write(data, split, rows, params.side, output, part)
        np.save(output / f"{split}.rows.npy", rows)
        np.save(output / f"{split}.labels.npy", labels[rows])
    document = {
        "lengths": {split: data.lengths[split] for split in data.lengths},
        "counts": counts,
        "seed": params.seed,
        "notes": list(data.notes),
    }
    (output / COUNTS).write_text(json.dumps(document), "utf-8")


def sample(labels: np.ndarray, per_class: int, seed: int) -> np.ndarray:
    """Return rows of at most so many images of every class, sorted; fewer where there are very many classes."""
    generator = np.random.default_rng(seed)
    present = np.unique(labels)
    each = max(1, min(per_class, MOST // max(1, len(present))))
    parts = [generator.permutation(np.flatnonzero(labels == label))[:each] for label in present]
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def pictures_at(folder: Path, rows: np.ndarray) -> np.ndarray:
    """Return pictures of test images by their rows: uint8 (n, side, side, 3).

    Raises:
        DataError: there is none of a row.
    """
    known = np.load(folder / "test.rows.npy")
    places = np.searchsorted(known, rows)
    if len(rows) and (places.max() >= len(known) or (known[places] != rows).any()):
        raise DataError("The registered pictures are of other images than the run's. Run the recipe again.")
    return np.asarray(np.load(folder / "test.pictures.npy", mmap_mode="r")[places])


def _looked_at(data: TaskData, probe: Probe | None) -> np.ndarray:
    """Return the rows of the test images that a probe selects, else of all."""
    return np.arange(data.lengths["test"]) if probe is None else np.sort(select(data, probe).test)


def _write(data: TaskData, split: str, rows: np.ndarray, side: int, output: Path, progress: Any) -> None:
    """Write pictures in the order of the rows, straight to disk."""
    shape = (len(rows), side, side, 3)
    sheet = np.lib.format.open_memmap(output / f"{split}.pictures.npy", "w+", np.uint8, shape)
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        for place, picture in enumerate(data.pictures(split, part, side)):
            sheet[start + place] = picture
        progress((start + len(part)) / len(rows), f"{split} image {start + len(part):,} of {len(rows):,}")
    sheet.flush()
