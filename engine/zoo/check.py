"""Everything that can be wrong with a zoo, found before anything long starts."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import EngineError, ZooError
from ..manifest import Task
from ..types import Progress
from ..weights import check_finite, check_same_architecture
from .backbone import architecture, load_encoder, preprocessing
from .data import open_task
from .folder import Zoo
from .heads import read_heads


def check_zoo(zoo: str, progress: Progress) -> list[str]:
    """Check files, architecture, keys, shapes, values, heads and data of a zoo.

    Args:
        zoo: a bundled zoo's name or a path.
        progress: told what is being checked.

    Returns:
        One sentence for each part that is in order.

    Raises:
        ZooError: everything that is wrong, one line each.
    """
    opened = Zoo.open(zoo)
    manifest = opened.manifest
    findings, faults = [], []

    def attempt(what: str, check: Callable[[], str]) -> None:
        progress(0.0, f"Checking {what}")
        try:
            findings.append(check())
        except EngineError as error:
            faults.append(str(error))

    attempt("the base", lambda: _base(opened))
    if not faults:
        for model in (*(r.name for r in manifest.references), *manifest.expert_table):
            attempt(model, lambda model=model: _model(opened, model))
    for task in manifest.tasks:
        if task.data:
            attempt(f"the data of {task.name}", lambda task=task: _data(opened, task))
    if manifest.heads:
        attempt("the heads", lambda: _heads(opened))
    if faults:
        raise ZooError("\n".join([f"The zoo '{manifest.name}' has {len(faults)} faults:", *faults]))
    return findings


def _base(zoo: Zoo) -> str:
    weights = zoo.weights("base")
    check_finite(weights, "The base")
    load_encoder(architecture(zoo.folder, zoo.manifest), weights)
    size = preprocessing(zoo.folder, zoo.manifest).size
    return f"base: {len(weights.names)} visual tensors that fit the architecture, images of {size} px"


def _model(zoo: Zoo, model: str) -> str:
    weights = zoo.weights(model)
    check_same_architecture(zoo.weights("base"), weights, model)
    check_finite(weights, f"Expert '{model}'")
    return f"{model}: {len(weights.names)} tensors of the base's shapes, all finite"


def _data(zoo: Zoo, task: Task) -> str:
    data = open_task(zoo.folder, task)
    for split in ("test", "val", "train"):
        if data.has(split):
            data.labels(split)
    counts = ", ".join(f"{count} {split}" for split, count in data.lengths.items())
    return f"{task.name}: {counts} images, {len(task.classes)} classes"


def _heads(zoo: Zoo) -> str:
    tasks = [task.name for task in zoo.manifest.tasks]
    heads, warnings = read_heads(zoo.folder, zoo.manifest, tasks)
    return " ".join([f"heads: {len(heads)} tasks, scale {next(iter(heads.values())).scale:.3g}", *warnings])
