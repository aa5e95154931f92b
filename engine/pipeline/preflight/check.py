"""Everything that can go wrong with a run, and what it will cost, found out before anything long starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from ...catalog import CALIBRATORS, params_of, resolve, row_of
from ...errors import EngineError
from ...features import choose_device
from ...recipe import Recipe, parse_recipe
from ...rounding import bytes_text
from ...store import Store
from ...store.outputs import free_at
from ...types import Finding, Tensors, Weights
from ...weights import check_finite
from ...weights.families import family_warnings
from ...zoo.check import absent
from ...zoo.encoders.architecture import architecture
from ...zoo.folder import Zoo
from ...zoo.images.splits import select
from ...zoo.inspection.parts import inspect
from ..executor import needed_steps
from ..graph import Plan
from ..rates import known_rates
from ..run.findings import findings
from ..run.plan import plan_run
from ..steps import NoInputs, StepParams, step
from ..tools import StepTools
from .estimate import Estimate, FindingPart, Preflight, estimate, gather
from .probe import probe

ORDER = {"error": 0, "warning": 1, "note": 2}
SPARE = 0.9  # of the free disk and memory that a run may take without a word


class PreflightParams(StepParams):
    """Parameters of the check of a recipe."""

    recipe: dict[str, Any]  # as it was asked for, with what may be wrong in it
    asked: float  # seconds since the epoch: it looks at the machine as it is, so each asking is a step of its own


def plan_preflight(request: Mapping[str, Any], store: Store) -> Plan:
    """Plan the check of a recipe (``recipe``).

    Raises:
        RecipeError: the recipe cannot even be read.
    """
    recipe = parse_recipe(request.get("recipe")).model_dump(mode="json")
    gpu = choose_device().type == "cuda"  # the encoder is measured where it will run
    node = preflight.plan(PreflightParams(recipe=recipe, asked=time.time()), gpu=gpu)
    return Plan((node,), node.key)


@step("preflight", label="Checking everything before it starts", params=PreflightParams, gpu=True)
def preflight(inputs: NoInputs[Path], params: PreflightParams, output: Path, tools: StepTools) -> None:
    """Check recipe, zoo, values, data, disk and memory; writes ``preflight.json``."""
    found = check_run(parse_recipe(params.recipe), tools)
    (output / "preflight.json").write_text(found.model_dump_json(indent=1), "utf-8")


def check_run(recipe: Recipe, tools: StepTools) -> Preflight:
    """Check a run and estimate it; what is wrong with one part hides no other.

    Args:
        recipe: what is to be run.
        tools: progress, cancellation, store and cache of the running step.
    """
    guess = None
    try:
        zoo = Zoo.open(recipe.zoo)
    except EngineError as error:
        return _report([Finding("error", str(error))], None)
    if missing := absent(recipe.zoo):
        return _report(missing, None)
    found = findings(recipe, zoo)
    chosen: list[str] = []
    resolved = False
    with suppress(EngineError):  # has been found already
        chosen = [name for name, _ in zoo.choose(recipe)]
        recipe, resolved = resolve(recipe), True
    references = [reference.name for reference in zoo.manifest.references]
    tasks = _tasks(zoo, chosen)
    found += inspect(zoo, tools.part(0.0, 0.1), models=[*chosen, *references], tasks=tasks, values=False)
    found += _values(zoo, chosen, tools)
    found += _splits(zoo, recipe, tasks)
    plan: Plan | None = None
    if not any(finding.level == "error" for finding in found):
        try:
            plan = plan_run(recipe, tools.store)
        except EngineError as error:
            found.append(Finding("error", str(error)))
    if resolved:
        try:
            guess = _estimate(zoo, recipe, plan, tools)
            found += _room(guess, tools.store)
        except EngineError as error:
            if str(error) not in {finding.text for finding in found}:
                found.append(Finding("warning", f"Time and memory cannot be estimated: {error}"))
    return _report(found, guess)


def _report(findings: list[Finding], guess: Estimate | None) -> Preflight:
    ordered = sorted(dict.fromkeys(findings), key=lambda finding: ORDER[finding.level])
    return Preflight(findings=tuple(FindingPart(level=f.level, text=f.text) for f in ordered), estimate=guess)


def _tasks(zoo: Zoo, chosen: list[str]) -> list[str]:
    """Return the tasks that a run of these experts scores."""
    own = {zoo.manifest.expert_table[name].task for name in chosen}
    return [task.name for task in zoo.manifest.tasks if task.domain == "out" or (task.shifted_from or task.name) in own]


def _values(zoo: Zoo, chosen: list[str], tools: StepTools) -> Iterator[Finding]:
    """Find NaN and infinities, and tensors that an expert leaves at the base's values; remembered for every file."""
    changed: dict[str, frozenset[str]] = {}
    kept = StepTools(tools.store, tools.monitor)  # as merges do it, on the CPU
    kept.uses = tools.uses
    for number, name in enumerate(chosen):
        try:
            base, expert = zoo.weights("base"), zoo.weights(name)
            digests = {
                "base": tools.store.digest_file(zoo.weights_path("base")),
                "expert": tools.store.digest_file(zoo.weights_path(name)),
            }
            progress = tools.part(0.1 + 0.6 * number / len(chosen), 0.1 + 0.6 * (number + 1) / len(chosen))
            found = kept.cached(
                {"quantity": "compared", **digests}, lambda b=base, e=expert, n=name, p=progress: _compare(b, e, n, p)
            )
            # The merge asks for the same artefact, so that no file is checked twice.
            kept.cached(
                {"quantity": "finite", "params": {}, "factor": 1.0, **digests}, lambda: {"finite": torch.ones(1)}
            )
        except EngineError as error:
            tools.check()
            yield Finding("error", str(error))
            continue
        moved = [tensor for tensor, same in zip(base.names, found["same"].tolist(), strict=True) if not same]
        changed[name] = frozenset(moved)
        if not moved:
            yield Finding("warning", f"Expert '{name}' equals the base; it adds nothing to a merge.")
    yield from _equals(zoo, chosen, tools)
    trained = {name: tensors for name, tensors in changed.items() if tensors}
    yield from (Finding("warning", text) for text in family_warnings(trained))


def _equals(zoo: Zoo, chosen: list[str], tools: StepTools) -> Iterator[Finding]:
    """Return the experts whose files hold the same weights."""
    owners: dict[str, list[str]] = {}
    for name in chosen:
        with suppress(EngineError):  # a missing file has been named already
            owners.setdefault(tools.store.digest_file(zoo.weights_path(name)), []).append(name)
    for names in owners.values():
        if len(names) > 1:
            listed = ", ".join(f"'{name}'" for name in names)
            yield Finding(
                "warning", f"Experts {listed} have the same weights, which count {len(names)} times. Keep one of them."
            )


def _compare(base: Weights, expert: Weights, name: str, progress: Callable[..., None]) -> Tensors:
    check_finite(base, "The base")
    check_finite(expert, f"Expert '{name}'", progress)
    same = [torch.equal(base.tensor(part).float(), expert.tensor(part).float()) for part in base.names]
    return {"same": torch.tensor(same)}


def _batch_sizes(recipe: Recipe) -> Iterator[int]:
    """Return the images that each calibrator takes at a time; those that cannot be used have been named already."""
    for call in recipe.calibrators:
        with suppress(EngineError):
            yield params_of(row_of(CALIBRATORS, call.method, "calibrator"), call.params).batch_size


def _splits(zoo: Zoo, recipe: Recipe, tasks: list[str]) -> Iterator[Finding]:
    """Return splits that are empty or very small."""
    needed = max(_batch_sizes(recipe), default=0)
    for name in tasks:
        try:
            data = zoo.open_data(name)
            if data is None:
                continue
            chosen = select(data, recipe.probe)
        except EngineError:
            continue  # said by the check of the data
        task = zoo.manifest.task_table[name]
        adapted = task.role == "in"
        if adapted and len(chosen.adapt_rows) < needed:
            yield Finding(
                "error",
                f"Task '{name}' leaves {len(chosen.adapt_rows)} images to adapt on; the calibrators take {needed} at a "
                "time. Lower their batch_size, or give the task more images.",
            )
        if len(chosen.evaluate_rows) < len(task.classes):
            yield Finding(
                "warning",
                f"Task '{name}' is scored on {len(chosen.evaluate_rows)} images of {len(task.classes)} classes; "
                "its accuracy will be coarse.",
            )


def _estimate(zoo: Zoo, recipe: Recipe, plan: Plan | None, tools: StepTools) -> Estimate:
    facts = gather(zoo, recipe)
    try:
        config = architecture(zoo.folder, zoo.manifest)
        rates = probe(zoo.weights_path("base"), config, facts, recipe, tools)
    except EngineError:  # such as of a base that is not there, which has been said
        rates = known_rates(tools.store)  # with what was measured before it
    return estimate(recipe, facts, rates, _shares(plan, tools.store) if plan else None)


def _shares(plan: Plan, store: Store) -> dict[str, float]:
    """Return, of each kind of step, the part whose artefacts are not in the store yet."""
    needed = {node.key for node in needed_steps(plan, store)}
    kinds: dict[str, list[bool]] = {}
    for node in plan.steps:
        kinds.setdefault(node.name, []).append(node.key in needed)
    return {name: sum(parts) / len(parts) for name, parts in kinds.items()}


def _room(guess: Estimate, store: Store) -> Iterator[Finding]:
    """Compare disk and memory with what is free."""
    free, memory = free_at(store.root), psutil.virtual_memory().available
    if guess.disk_bytes > SPARE * free:
        yield Finding(
            "error",
            f"About {bytes_text(guess.disk_bytes)} of disk are needed; {store.root} has {bytes_text(free)} free. "
            "Delete runs and collect garbage (`runs gc`), or set MERGELENS_STORE to a larger disk.",
        )
    if guess.peak_memory_bytes > SPARE * memory:
        yield Finding(
            "warning",
            f"About {bytes_text(guess.peak_memory_bytes)} of memory are needed at the largest moment; "
            f"{bytes_text(memory)} are free. Choose fewer experts or images, or close other programs.",
        )
