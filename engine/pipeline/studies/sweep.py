"""From a sweep to a plan: the union of the steps of all its runs, what the best is chosen by, and the table.

Equal steps have equal keys and are one, so nothing is computed twice; runs of a sweep are independent of each other
and go side by side to all workers. A run that fails takes no other one along.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...catalog import CALIBRATORS, MERGE_METHODS
from ...manifest import Task
from ...recipe import Probe
from ...store import Store
from ...sweeps import Point, SweepRequest
from ...zoo.folder import Zoo
from ..graph import Part, Plan
from ..run.encoding import EncodingParams
from ..run.plan import CONTROL, RunSteps
from ..run.summing import sum_where_cheaper
from ..steps import Step, closure
from .validation import (
    ChoiceSeed,
    PlannedPoint,
    PointInputs,
    SweepInputs,
    SweepParams,
    ValidateInputs,
    ValidateParams,
    sweep_table,
    validate,
    validation_features,
)


@dataclass(frozen=True)
class Choice:
    """Images that the best run of a sweep is chosen by."""

    split: str | None  # validation, adaptation or nothing
    reason: str = ""  # why nothing


@dataclass(frozen=True)
class Planned:
    """One point with its steps."""

    point: Point
    run: str  # key of what the run leaves
    validate: str  # key of its accuracies on the images to choose by; empty without any
    steps: tuple[str, ...]  # keys of everything it needs, itself included


def plan_sweep(asked: SweepRequest, store: Store) -> Plan:
    """Plan a sweep.

    Raises:
        RecipeError: a place or value that cannot be used, or too many points.
        EngineError: a recipe that cannot be carried out; nothing is computed then.
    """
    steps: dict[str, Step] = {}
    zoos: dict[str, Zoo] = {}
    runs: list[tuple[Point, RunSteps]] = []
    for point in asked.points():
        zoo = zoos.setdefault(point.recipe.zoo, Zoo.open(point.recipe.zoo))
        runs.append((point, RunSteps(zoo, point.recipe, store, steps)))
    choice = choose_split([run for _, run in runs])
    sum_where_cheaper(run for _, run in runs)
    planned = []
    for point, run in runs:
        bundle = run.bundle()
        check = add_validation(run, choice.split) if choice.split else ""
        wanted = closure(steps, [key for key in (bundle, check) if key])
        planned.append(Planned(point, bundle, check, tuple(step.key for step in wanted)))
    return _plan(asked, planned, {}, steps, choice)


def choose_split(runs: list[RunSteps]) -> Choice:
    """Return the labelled images that no run evaluates on: validation images, else a labelled half that runs adapt on.

    One split serves all tasks of all runs, so that their means can be compared.
    """
    probes = {run.recipe.probe for run in runs}
    if len(probes) > 1 or len({str(run.zoo.folder) for run in runs}) > 1:
        return Choice(None, "the runs look at different images, so their accuracies cannot be compared.")
    tasks = {task.name: (run, task) for run in runs for task in run.in_domain()}
    if not tasks or not runs[0].has_heads:
        return Choice(None, "the zoo has no images or no heads, so nothing is scored.")
    if all(task.grades for _, task in tasks.values()):
        return Choice(None, "answers of these tasks are numbers, so there is no accuracy to choose by.")
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
    on = {call.name: CONTROL if call.on == CONTROL else "merged" for call in run.recipe.calibrators}
    return _scored(run, split, run.in_domain(), on)


def add_others(run: RunSteps) -> str:
    """Add the steps that score a run and the pretrained model on validation images of the tasks out of domain.

    Returns:
        The key of the last one; empty where no such task has validation images.
    """
    tasks = [task for task in run.out_of_domain() if run.zoo.data[task.name].has("val")]
    return _scored(run, "validation", tasks, {}, pretrained=True) if tasks else ""


def _scored(
    run: RunSteps, split: str, of: Iterable[Task], on: Mapping[str, str], pretrained: bool | None = None
) -> str:
    tasks = [task for task in of if not task.grades]
    states = dict.fromkeys(["merged", *([CONTROL] if pretrained else []), *on.values()])
    deep = any(CALIBRATORS[call.method].deep for call in run.recipe.calibrators if call.name in on)
    seeds = {}
    for seed in run.recipe.seeds:
        made = run.seed(seed)
        features = made.features if split == "adaptation" else _encoded(run, states, tasks, made.merge)
        seeds[seed] = ChoiceSeed(
            made.merge if deep and split == "validation" else None,
            {state: {task.name: features[state][task.name] for task in tasks} for state in states},
            {name: made.calibrator[name] for name in on},
        )
    params = ValidateParams(
        split=split,
        tasks=tuple(task.name for task in tasks),
        seeds=run.recipe.seeds,
        calibrators=dict(on),
        pretrained=pretrained,
        probe=_chosen_by(run) if split == "validation" else run.recipe.probe,
        data={task.name: run.data_digests[task.name] for task in tasks},
        heads=run.digests.get("heads"),
        sources=run.sources,
    )
    return run.make(validate, params, ValidateInputs[str](seeds, run.heads()), f"Scoring {split} images")


def _encoded(run: RunSteps, states: Iterable[str], tasks: Sequence[Task], merge: str) -> dict[str, dict[str, str]]:
    """Add features of some states on the tasks' validation images; returns their keys by state and task."""
    found: dict[str, dict[str, str]] = {}
    for state in states:
        model, merged = ("merged", merge) if state == "merged" else ("base", None)
        for task in tasks:
            params = EncodingParams(**{**run.encoding(model, task, merged), "probe": _chosen_by(run)})
            label = f"Encoding {task.label} (validation) with {state}"
            made = run.encode(validation_features, params, task, merged, label)
            found.setdefault(state, {})[task.name] = made
    return found


def _chosen_by(run: RunSteps) -> Probe:
    """Return what the choice of validation images depends on; the protocol is no part of it."""
    return run.recipe.probe.model_copy(update={"protocol": "held_out"})


def _plan(
    asked: SweepRequest, planned: list[Planned], failed: Mapping[int, str], steps: Mapping[str, Step], choice: Choice
) -> Plan:
    """Return the plan of the points that did not fail, with a table that says which did and why."""
    alive = [entry for entry in planned if entry.point.number not in failed]
    inputs = SweepInputs[str]({entry.point.number: PointInputs(entry.run, entry.validate or None) for entry in alive})
    points = tuple(
        PlannedPoint(
            number=entry.point.number,
            values=tuple(entry.point.values),
            title=entry.point.title,
            run=None if entry.point.number in failed else entry.run,
            failed=failed.get(entry.point.number),
        )
        for entry in planned
    )
    params = SweepParams(
        places=asked.places, titles=asked.titles(), points=points, split=choice.split, reason=choice.reason
    )
    last = sweep_table.plan(params, inputs)
    wanted = {key for entry in alive for key in entry.steps}

    def without(key: str, reason: str) -> Plan | None:
        lost = {entry.point.number: reason for entry in alive if key in entry.steps}
        if not lost or len(lost) == len(alive):
            return None
        return _plan(asked, planned, {**failed, **lost}, steps, choice)

    return Plan(
        steps=(*(step for key, step in steps.items() if key in wanted), last),
        result=last.key,
        parts=tuple(_part(entry, "merge.method" in asked.places) for entry in alive),
        without=without,
    )


def _part(entry: Planned, named: bool) -> Part:
    recipe = entry.point.recipe
    title = entry.point.title if named else f"{MERGE_METHODS[recipe.merge.method].title}, {entry.point.title}"
    place = {"number": entry.point.number, "values": list(entry.point.values), "title": entry.point.title}
    request = {"recipe": recipe.model_dump(mode="json"), "point": place}
    return Part(entry.run, title, request, entry.steps)
