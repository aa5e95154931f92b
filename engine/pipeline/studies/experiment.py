"""From an experiment to a plan: the union of the steps of its runs, and what is measured on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...experiments import Experiment, read_experiment
from ...store import Store
from ...zoo.folder import Zoo
from ..run.plan import RunSteps
from ..steps import Part, Plan, Step, make_step
from ..views.plans import shift_steps, stitching_steps
from ..views.request import NEEDS

VERSION = 1
VIEWS = {"stitching": stitching_steps, "shift": shift_steps}
DEFAULT_ZOO = "mini8"


@dataclass(frozen=True)
class PlannedRun:
    """One recipe of an experiment with its steps."""

    point: str
    seed: int
    bundle: str
    part: Part
    views: Mapping[str, str]  # name → key of what an analysis reads beside the run
    steps: frozenset[str]  # keys of everything it needs, itself included


def plan_experiment(request: Mapping[str, Any], store: Store) -> Plan:
    """Plan an experiment.

    Args:
        request: ``{"name": …, "zoo": …, "quick": …}``; ``spec`` in place of the name is an experiment written out.
        store: gives digests of files.

    Raises:
        RecipeError: no such experiment, or a recipe of it that cannot be used.
        EngineError: a recipe that this zoo cannot carry out; nothing is computed then.
    """
    spec = request.get("spec")
    experiment = Experiment.model_validate(spec) if spec else read_experiment(str(request.get("name", "")))
    place, quick = str(request.get("zoo") or DEFAULT_ZOO), bool(request.get("quick"))
    zoo = Zoo.open(place)
    asked = dict.fromkeys(NEEDS[m.analysis] for m in experiment.measures if m.analysis in NEEDS)
    steps: dict[str, Step] = {}
    runs: list[PlannedRun] = []
    for point, seed, recipe in experiment.recipes(place, quick=quick):
        before = set(steps)
        run = RunSteps(zoo, recipe, store, steps)
        bundle = run.bundle()
        needed = _closure(steps, bundle) | (set(steps) - before)
        views = {name: VIEWS[name](run) for name in asked}
        read = needed.union(*(_closure(steps, key) for key in views.values()))
        title = f"{experiment.title}: {point.title}" + (f", seed {seed}" if experiment.seeds > 1 else "")
        part = Part(bundle, title, {"recipe": recipe.model_dump(mode="json")}, tuple(k for k in steps if k in needed))
        runs.append(PlannedRun(point.name, seed, bundle, part, views, frozenset(read)))
    facts = {
        "experiment": experiment.model_dump(mode="json"),
        "quick": quick,
        "zoo": {"name": zoo.manifest.name, "digest": zoo.digest(store.digest_file)},
    }
    source = str(zoo.folder)
    return _plan(runs, {}, steps, facts, source)


def _plan(
    runs: list[PlannedRun], failed: Mapping[str, str], steps: Mapping[str, Step], facts: dict[str, Any], source: str
) -> Plan:
    """The plan without what failed; the result says which points that were, and why."""
    alive = [run for run in runs if run.bundle not in failed]
    inputs = {f"{run.point}/{run.seed}": run.bundle for run in alive}
    inputs |= {f"{run.point}/{run.seed}/{name}": key for run in alive for name, key in run.views.items()}
    reasons = {run.point: failed[run.bundle] for run in runs if run.bundle in failed}
    params = {**facts, "failed": reasons, "sources": {"zoo": source}}
    identity = {**facts, "failed": reasons}
    last = make_step(
        "experiment",
        params=params,
        identity=identity,
        inputs=inputs,
        label="Measuring and judging",
        weight=0.5,
        version=VERSION,
    )
    wanted = frozenset().union(*(run.steps for run in alive))

    def without(key: str, reason: str) -> Plan | None:
        lost = {run.bundle: reason for run in alive if key in run.steps}
        if not lost or len(lost) == len({run.bundle for run in alive}):
            return None
        return _plan(runs, {**failed, **lost}, steps, facts, source)

    return Plan(
        steps=(*(step for key, step in steps.items() if key in wanted), last),
        result=last.key,
        identity=last.key,
        parts=tuple({run.bundle: run.part for run in alive}.values()),
        without=without,
    )


def _closure(steps: Mapping[str, Step], key: str) -> set[str]:
    """A step and everything that it needs."""
    found: set[str] = set()
    stack = [key]
    while stack:
        current = stack.pop()
        if current not in found and current in steps:
            found.add(current)
            stack.extend(steps[current].needs)
    return found
