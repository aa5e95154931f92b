"""From a sweep to a plan: the union of the steps of all its runs, what the best is chosen by, and the table.

Equal steps have equal keys and are one, so nothing is computed twice; runs of a sweep are independent of each other
and go side by side to all workers. A run that fails takes no other one along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...catalog import CALIBRATORS, MERGE_METHODS
from ...manifest import Task
from ...store import Store
from ...sweeps import Point, SweepRequest
from ...zoo.folder import Zoo
from ..run.plan import CONTROL, VERSIONS, RunSteps
from ..steps import Part, Plan, Step, make_step


@dataclass(frozen=True)
class Choice:
    """What the best run of a sweep may be chosen by."""

    split: str | None  # validation, adaptation or nothing
    reason: str = ""  # why nothing


@dataclass(frozen=True)
class Planned:
    """One point with its steps."""

    point: Point
    run: str  # key of what the run leaves
    validate: str  # key of its accuracies on the images to choose by; empty without any
    steps: tuple[str, ...]  # keys of everything it needs, itself included


def plan_sweep(request: Mapping[str, Any], store: Store) -> Plan:
    """Plan a sweep.

    Args:
        request: ``{"recipe": …, "settings": [{"place": …, "values": […]}, …]}``.
        store: gives digests of files.

    Raises:
        RecipeError: a place or value that cannot be used, or too many points.
        EngineError: a recipe that cannot be carried out; nothing is computed then.
    """
    asked = SweepRequest.parse(request)
    steps: dict[str, Step] = {}
    zoos: dict[str, Zoo] = {}
    runs: list[tuple[Point, RunSteps]] = []
    for point in asked.points():
        zoo = zoos.setdefault(point.recipe.zoo, Zoo.open(point.recipe.zoo))
        runs.append((point, RunSteps(zoo, point.recipe, store, steps)))
    choice = choose_split([run for _, run in runs])
    planned = []
    for point, run in runs:
        bundle = run.bundle()
        check = add_validation(run, choice.split) if choice.split else ""
        wanted = _closure(steps, [key for key in (bundle, check) if key])
        planned.append(Planned(point, bundle, check, tuple(key for key in steps if key in wanted)))
    return _plan(asked, planned, {}, steps, choice)


def choose_split(runs: list[RunSteps]) -> Choice:
    """Labelled images that no run evaluates on: validation images, else a labelled half that runs adapt on.

    One split serves all tasks of all runs, so that their means can be compared.
    """
    probes = {run.recipe.probe for run in runs}
    if len(probes) > 1 or len({str(run.zoo.folder) for run in runs}) > 1:
        return Choice(None, "the runs look at different images, so their accuracies cannot be compared.")
    tasks = {task.name: (run, task) for run in runs for task in run.in_domain()}
    if not tasks or not runs[0].has_heads:
        return Choice(None, "the zoo has no images or no heads, so nothing is scored.")
    if len({tuple(task.name for task in run.in_domain()) for run in runs}) > 1:
        return Choice(None, "the runs merge different experts, so their accuracies cannot be compared.")
    if all(run.zoo.data[name].has("val") for name, (run, _) in tasks.items()):
        return Choice("validation")
    lacking = ", ".join(name for name, (run, _) in tasks.items() if not run.zoo.data[name].has("val"))
    reason = f"there are no labelled validation images (val_x, val_y) of {lacking}"
    if probes.pop().protocol == "paper":
        return Choice(None, f"{reason}, and under the paper protocol the adaptation images are evaluated on.")
    if any(run.zoo.data[name].has("adapt") for name, (run, _) in tasks.items()):
        return Choice(None, f"{reason}, and the adaptation images have no labels.")
    return Choice("adaptation")


def add_validation(run: RunSteps, split: str) -> str:
    """Add the steps that score one run on the images to choose by; returns the key of the last one."""
    tasks = run.in_domain()
    calls = [
        {"name": call.name, "state": "pretrained" if call.on == CONTROL else "merged"}
        for call in run.recipe.calibrators
    ]
    states = dict.fromkeys(["merged", *(call["state"] for call in calls)])
    inputs: dict[str, str] = {}
    for seed in run.recipe.seeds:
        merge = run.merge(seed)
        deep = any(CALIBRATORS[call.method].deep for call in run.recipe.calibrators)
        if deep and split == "validation":
            inputs[f"{seed}/merge"] = merge
        seeded = run.seed_inputs(seed)
        inputs |= {role: key for role, key in seeded.items() if role.startswith(f"{seed}/calibrator/")}
        for state in states:
            for task in tasks:
                role = f"{seed}/{state}/{task.name}"
                inputs[role] = seeded[role] if split == "adaptation" else _encoded(run, state, task, merge)
    inputs |= run.heads_input()
    params = {
        "split": split,
        "tasks": [task.name for task in tasks],
        "seeds": list(run.recipe.seeds),
        "calibrators": calls,
        "probe": _chosen_by(run) if split == "validation" else run.probe,
        "data": {task.name: run.data_digests[task.name] for task in tasks},
        "heads": run.digests.get("heads"),
        "sources": run.sources,
    }
    return run.add("validate", params, inputs, f"Scoring {split} images", 0.5)


def _encoded(run: RunSteps, state: str, task: Task, merge: str) -> str:
    """Features of one model on one task's validation images."""
    merged = state == "merged"
    params = {
        "model": "merged" if merged else "base",
        "digest": merge if merged else run.digests["base"],
        "task": task.name,
        "data": run.data_digests[task.name],
        "probe": _chosen_by(run),
        "architecture": run.config,
        "preprocess": run.preprocess,
        "sources": run.sources,
    }
    if merged and run.by_task:
        params["weights_of"] = task.name
    title = f"Encoding {task.label} (validation) with {'merged' if merged else 'pretrained'}"
    return run.add("validation_features", params, {"merged": merge} if merged else {}, title, 0.5)


def _chosen_by(run: RunSteps) -> dict[str, Any]:
    """What the choice of validation images depends on; the protocol is no part of it."""
    return {name: run.probe[name] for name in ("samples_per_task", "split_seed")}


def _plan(
    asked: SweepRequest, planned: list[Planned], failed: Mapping[int, str], steps: Mapping[str, Step], choice: Choice
) -> Plan:
    """The plan of the points that did not fail, with a table that says which did and why."""
    alive = [entry for entry in planned if entry.point.number not in failed]
    inputs = {f"{entry.point.number}/run": entry.run for entry in alive}
    inputs |= {f"{entry.point.number}/choice": entry.validate for entry in alive if entry.validate}
    points = []
    for entry in planned:
        row = {"number": entry.point.number, "values": list(entry.point.values), "title": entry.point.title}
        reason = failed.get(entry.point.number)
        points.append({**row, "failed": reason} if reason else {**row, "run": entry.run})
    params = {"places": list(asked.places), "titles": list(asked.titles()), "points": points}
    params |= {"split": choice.split, "reason": choice.reason}
    last = make_step(
        "sweep", params=params, inputs=inputs, label="Gathering the table", weight=0.2, version=VERSIONS["sweep"]
    )
    wanted = {key for entry in alive for key in entry.steps}

    def without(key: str, reason: str) -> Plan | None:
        lost = {entry.point.number: reason for entry in alive if key in entry.steps}
        if not lost or len(lost) == len(alive):
            return None
        return _plan(asked, planned, {**failed, **lost}, steps, choice)

    return Plan(
        steps=(*(step for key, step in steps.items() if key in wanted), last),
        result=last.key,
        identity=last.key,
        parts=tuple(_part(entry, "merge.method" in asked.places) for entry in alive),
        without=without,
    )


def _part(entry: Planned, named: bool) -> Part:
    recipe = entry.point.recipe
    title = entry.point.title if named else f"{MERGE_METHODS[recipe.merge.method].title}, {entry.point.title}"
    place = {"number": entry.point.number, "values": list(entry.point.values), "title": entry.point.title}
    request = {"recipe": recipe.model_dump(mode="json"), "point": place}
    return Part(entry.run, title, request, entry.steps)


def _closure(steps: Mapping[str, Step], keys: list[str]) -> set[str]:
    """These steps and everything that they need."""
    found: set[str] = set()
    stack = list(keys)
    while stack:
        key = stack.pop()
        if key not in found and key in steps:
            found.add(key)
            stack.extend(steps[key].needs)
    return found
