"""Estimates of a recipe's time, memory and disk from sizes alone: no weights are read and torch is not loaded.

An estimate is right within a factor of two or so; it is there to tell seconds from hours and enough from too little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from ...catalog import CALIBRATORS, MERGE_METHODS, TRANSFORMS, Params, params_of
from ...catalog.row import BACKWARD
from ...errors import EngineError
from ...manifest import Manifest, Task
from ...recipe import CalibratorCall, Frozen, Recipe
from ...store import Store
from ...zoo.encoders.architecture import FLOAT, TowerSize, architecture, tower_size
from ...zoo.folder import Zoo, own_experts
from ...zoo.images.config import prompt_flops
from ..rates import Rates, known_rates

LIBRARIES = 550 * 2**20  # bytes that PyTorch itself takes in each process
FEATURES = 512  # dimensions of a tower of unknown kind
START = 1.0  # seconds around every run: planning, handing out, writing
REPORT = 1.5
TEXT = 0.8  # operations a second in the text encoder over those in the image encoder; 0.76 to 0.87 in ViT-B/32's
MAX_WORKERS = 4
BATCH = 64
SVD = 20.0  # operations of a singular value decomposition, in units of m · n · min(m, n)
ROUTED = 5.0  # an image through weights of its own costs about as much as five through shared ones
WITHOUT_WORK = ("steps", "learning_rate", "share")  # parameters that leave the time of a training step as it is
OVERHEAD = 4.0e-4  # seconds of a training step, for each matrix, beside the arithmetic


class Estimate(Frozen):
    """Expected time, memory and disk of a run."""

    seconds: float
    peak_memory_bytes: int  # of the largest moment, all worker processes together
    disk_bytes: int  # written into the store
    basis: str  # what the numbers rest on
    parts: dict[str, float] = Field(default_factory=dict)  # seconds of each kind of step


class FindingPart(Frozen):
    """A finding as it is written down."""

    level: str
    text: str


class Preflight(Frozen):
    """Result of a pre-flight: ``preflight.json``."""

    findings: tuple[FindingPart, ...]
    estimate: Estimate | None  # None where the zoo cannot even be opened

    @property
    def faults(self) -> list[str]:
        """Return the findings that stop the run."""
        return [finding.text for finding in self.findings if finding.level == "error"]


@dataclass(frozen=True)
class Facts:
    """Sizes of a zoo that estimates are made from, gathered from its manifest and the headers of its files."""

    experts: int
    tower: TowerSize
    images: dict[str, int]  # test images encoded for each scored task
    adapted: dict[str, int]  # and images that are only adapted on, by task
    in_domain: tuple[str, ...]  # tasks that calibrators are trained on
    references: int = 0
    unknown: tuple[str, ...] = field(default=())  # tasks whose images cannot be counted here
    prompts: float = 0.0  # operations of building heads, 0 where the zoo brings them
    everyone: int = 0  # experts that a recipe takes which asks for all


def quick_estimate(recipe: Recipe, store: Store) -> Estimate:
    """Estimate a recipe from sizes and known rates, in milliseconds and without torch; nothing is measured.

    Raises:
        EngineError: the zoo cannot be used.
    """
    return estimate(recipe, gather(Zoo.open(recipe.zoo), recipe), known_rates(store))


def gather(zoo: Zoo, recipe: Recipe) -> Facts:
    """Count models, parameters and images of a recipe's zoo.

    Raises:
        EngineError: the zoo cannot be used at all.
    """
    manifest = zoo.manifest
    chosen = {manifest.expert_table[name].task for name, _ in zoo.choose(recipe)}
    tower = tower_size(architecture(zoo.folder, manifest)) or _measured_tower(zoo)
    images, adapted, unknown = {}, {}, []
    for task in manifest.tasks:
        if not task.data or not (task.domain == "out" or (task.shifted_from or task.name) in chosen):
            continue
        try:
            images[task.name], adapted[task.name] = _count(zoo, task, recipe)
        except EngineError:
            unknown.append(task.name)
    inside = [name for name in images if name in chosen]
    references = len(manifest.references)
    built = bool(images) and not manifest.heads
    prompts = _prompts(manifest) * prompt_flops(architecture(zoo.folder, manifest)) if built else 0.0
    everyone = len(own_experts(manifest, manifest.expert_table))
    return Facts(
        len(chosen), tower, images, adapted, tuple(sorted(inside)), references, tuple(unknown), prompts, everyone
    )


def estimate(recipe: Recipe, facts: Facts, rates: Rates, shares: Mapping[str, float] | None = None) -> Estimate:
    """Estimate a run.

    Args:
        recipe: with its defaults written out.
        facts: of its zoo.
        rates: of this machine.
        shares: for each kind of step the part that is still to be computed; everything by default.
    """
    seeds = len(recipe.seeds)
    row = MERGE_METHODS[recipe.merge.method]
    merges = seeds if row.learns or row.stochastic else 1
    workers = min(MAX_WORKERS, rates.cores)
    training = [_calibrator_seconds(call, facts, rates) for call in recipe.calibrators]
    parts = {
        "merge": merges * merge_seconds(recipe, facts, rates),
        "salience": facts.experts * facts.tower.bytes * (1 / rates.read + 2 / rates.arithmetic) * (facts.experts > 1),
        "heads": facts.prompts / (TEXT * min(rates.encode_rate(facts.tower.name), rates.matmul)),
        "features": _encode_seconds(recipe, facts, rates, merges),
        "calibrate": max([sum(training) * seeds / workers, *training]) if training else 0.0,
        "bundle": REPORT if facts.images else 0.2,
    }
    parts = {name: round(seconds * (shares or {}).get(name, 1.0), 2) for name, seconds in parts.items() if seconds}
    basis = rates.basis
    if facts.unknown:
        basis += f"; the images of {', '.join(facts.unknown)} are not here and not counted"
    return Estimate(
        seconds=round(START + sum(parts.values()), 1),
        peak_memory_bytes=_memory(recipe, facts, workers),
        disk_bytes=_disk(recipe, facts, merges, shares or {}),
        basis=basis,
        parts=parts,
    )


def read_preflight(folder: Path) -> Preflight:
    """Read the result of a pre-flight."""
    return Preflight.model_validate_json((folder / "preflight.json").read_bytes())


def merge_seconds(recipe: Recipe, facts: Facts, rates: Rates) -> float:
    """Return the seconds of one merge."""
    row = MERGE_METHODS[recipe.merge.method]
    cost, params = row.cost, params_of(row, recipe.merge.params)
    transforms = [TRANSFORMS[call.method].cost for call in recipe.transforms]
    size = facts.tower.bytes
    reads, sweeps = (sum(getattr(part, name) for part in (cost, *transforms)) for name in ("reads", "sweeps"))
    # Every value is read twice: once for the check that it is finite (a file's first time), and by the method.
    seconds = (facts.experts + 1) * size * (reads + 2) / rates.read + facts.experts * size * sweeps / rates.arithmetic
    if cost.decomposes:
        work = sum(SVD * m * n * min(m, n) for m, n in facts.tower.matrices)
        seconds += (facts.experts + 1) * work / rates.matmul
    for part, given in ((cost, params), *zip(transforms, _transform_params(recipe), strict=True)):
        if part.images:
            models = facts.experts + 1 if part.by_all else 1
            passes = models * part.images(given) * facts.experts
            seconds += passes * facts.tower.flops / rates.encode_rate(facts.tower.name)
    if cost.merges:
        seconds += cost.merges(params) * facts.experts * size * 2 / rates.arithmetic
    if cost.products:
        work = sum(2 * n * n * m for m, n in facts.tower.matrices)
        seconds += cost.products(params) * facts.experts * work / rates.matmul
    return seconds


def _transform_params(recipe: Recipe) -> list[Params]:
    return [params_of(TRANSFORMS[call.method], call.params) for call in recipe.transforms]


def _encode_seconds(recipe: Recipe, facts: Facts, rates: Rates, merges: int) -> float:
    """Base, references and merged models see every task's images, an expert its own task's."""
    test, adapted = sum(facts.images.values()), sum(facts.adapted.values())
    control = any(call.on == "pretrained" for call in recipe.calibrators)
    own = sum(facts.images[task] for task in facts.in_domain)
    routed = ROUTED if MERGE_METHODS[recipe.merge.method].yields == "per_sample" else 1.0
    images = test * (1 + routed * merges + facts.references) + adapted * (routed * merges + control + 1) + own
    models = 1 + merges + facts.references + len(facts.in_domain)
    return images * facts.tower.flops / rates.encode_rate(facts.tower.name) + models * facts.tower.bytes / rates.read


def _calibrator_seconds(call: CalibratorCall, facts: Facts, rates: Rates) -> float:
    row = CALIBRATORS[call.method]
    params = params_of(row, call.params)
    if row.deep:
        tasks = max(len(facts.in_domain), 1)
        images = tasks * params.batch_size * BACKWARD * params.steps + 2 * sum(facts.images.values())
        return images * facts.tower.flops / rates.encode_rate(facts.tower.name)
    known = rates.step.get(step_name(call, facts))
    return params.steps * (_step_seconds(params, facts, rates) if known is None else known)


def step_name(call: CalibratorCall, facts: Facts) -> str:
    """Return a name of what the time of a training step depends on."""
    params = params_of(CALIBRATORS[call.method], call.params).model_dump(mode="json", exclude=set(WITHOUT_WORK))
    sizes = "-".join(f"{name}={params[name]}" for name in sorted(params))
    return f"{call.method}-{sizes}-{len(facts.in_domain)}-{facts.tower.dim}"


def _step_seconds(params: Any, facts: Facts, rates: Rates) -> float:
    """Return the time of a training step of all tasks, from its products and the optimiser's traffic on one core."""
    shapes = params.shapes({"dim": facts.tower.dim}).values()
    matrices = sum(len(shape) > 1 for shape in shapes)
    values = max(len(facts.in_domain), 1) * sum(map(math.prod, shapes))
    return (
        OVERHEAD * matrices
        + 2 * BACKWARD * params.batch_size * values * rates.cores / rates.matmul
        + 12 * FLOAT * values / rates.arithmetic
    )


def _memory(recipe: Recipe, facts: Facts, workers: int) -> int:
    """Return the largest of merging, encoding on every worker, and calibrators that hold images."""
    row = MERGE_METHODS[recipe.merge.method]
    size = facts.tower.bytes
    largest = max((math.prod(shape) for shape in facts.tower.matrices), default=facts.tower.parameters // 10) * FLOAT
    merging = LIBRARIES + 3 * (facts.experts + 2) * largest
    if row.cost.holds_models:
        merging += (facts.experts + 3) * size
    elif row.cost.decomposes:
        merging += 6 * largest
    elif row.yields != "static":
        merging += 2 * size
    if not facts.images:
        return merging
    busy = min(workers, len(facts.images))
    held = facts.experts + 3 if row.yields == "per_sample" else 2
    encoding = busy * (LIBRARIES + held * size + BATCH * facts.tower.activations)
    deep = [call for call in recipe.calibrators if CALIBRATORS[call.method].deep]
    training = LIBRARIES + 3 * size + 20 * BATCH * facts.tower.activations if deep else 0
    return max(merging, encoding, training)


def _disk(recipe: Recipe, facts: Facts, merges: int, shares: Mapping[str, float]) -> int:
    row = MERGE_METHODS[recipe.merge.method]
    merged = facts.tower.bytes * merges
    if row.yields == "per_sample":
        merged += merges * facts.experts * facts.tower.bytes
    elif row.yields == "per_task":
        merged += facts.experts * facts.tower.parameters  # a byte a mask entry
    state = (sum(facts.images.values()) + sum(facts.adapted.values())) * facts.tower.dim * FLOAT
    encoded, corrected = state * (2 + merges + facts.references), state * len(recipe.calibrators)
    # Features lie by task, and together in the result.
    sizes = {"merge": merged, "features": encoded, "calibrate": corrected, "bundle": encoded + corrected + 2**20}
    return round(sum(size * shares.get(name, 1.0) for name, size in sizes.items()))


def _count(zoo: Zoo, task: Task, recipe: Recipe) -> tuple[int, int]:
    """Return the test images of a task that a recipe has encoded, and images that are only adapted on."""
    lengths = zoo.data[task.name].lengths
    most = recipe.probe.samples_per_task
    adapts = task.role == "in" and recipe.probe.protocol == "held_out"
    counts = (lengths["test"], lengths.get("adapt", 0) if adapts else 0)
    return tuple(count if most == "all" else min(count, most) for count in counts)


def _prompts(manifest: Manifest) -> int:
    """Return how many prompts the heads of all tasks are built from."""
    return sum(
        max(len(task.templates), 1) * sum(len(task.words.get(name, (name,))) for name in task.classes)
        for task in manifest.tasks
    )


def _measured_tower(zoo: Zoo) -> TowerSize:
    """Size a tower whose work is not counted: parameters from the file's size, two operations for each and image."""
    parameters = zoo.weights_path("base").stat().st_size // FLOAT
    return TowerSize(FEATURES, (), parameters, 2.0 * parameters * 50, FLOAT * parameters // 20)
