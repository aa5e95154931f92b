"""From an experiment to a plan: the union of the steps of its runs, and what is measured on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...experiments import Experiment, read_experiment
from ...recipe import Request
from ...store import Store
from ...zoo.folder import Zoo
from ..graph import Part, Plan
from ..run.plan import RunSteps
from ..sources import Sources
from ..steps import Step, closure
from ..views import view_of
from .measure import ExperimentInputs, ExperimentParams, RunInputs, ZooFacts, experiment

DEFAULT_ZOO = "mini8"


class ExperimentRequest(Request):
    """Request to repeat an experiment on a zoo."""

    REFUSAL = "The experiment cannot be repeated"

    name: str = ""
    spec: Experiment | None = None  # an experiment written out, in place of the name
    zoo: str = DEFAULT_ZOO
    quick: bool = False


@dataclass(frozen=True)
class PlannedRun:
    """One recipe of an experiment with its steps."""

    point: str
    seed: int
    bundle: str
    part: Part
    views: Mapping[str, str]  # name → key of what the view leaves
    steps: frozenset[str]  # keys of everything it needs, itself included


def plan_experiment(asked: ExperimentRequest, store: Store) -> Plan:
    """Plan an experiment.

    Raises:
        RecipeError: no such experiment, or a recipe of it that cannot be used.
        EngineError: a recipe that this zoo cannot carry out; nothing is computed then.
    """
    spec = asked.spec or read_experiment(asked.name)
    zoo = Zoo.open(asked.zoo)
    views = [view_of(name) for name in dict.fromkeys(measure.view for measure in spec.measures) if name]
    steps: dict[str, Step] = {}
    runs: list[PlannedRun] = []
    for point, seed, recipe in spec.recipes(asked.zoo, quick=asked.quick):
        run = RunSteps(zoo, recipe, store, steps)
        bundle = run.bundle()
        needed = closure(steps, [bundle])
        keys = {view.name: view.plan(run, view.request(recipe=recipe)) for view in views}
        read = closure(steps, [bundle, *keys.values()])
        title = f"{spec.title}: {point.title}" + (f", seed {seed}" if spec.seeds > 1 else "")
        request = {"recipe": recipe.model_dump(mode="json")}
        part = Part(bundle, title, request, tuple(step.key for step in needed))
        runs.append(PlannedRun(point.name, seed, bundle, part, keys, frozenset(step.key for step in read)))
    facts = {
        "experiment": spec,
        "quick": asked.quick,
        "zoo": ZooFacts(name=zoo.manifest.name, digest=zoo.digest(store.digest_file)),
        "sources": Sources(zoo=str(zoo.folder)),
    }
    return _plan(runs, {}, steps, facts)


def _plan(
    runs: list[PlannedRun], failed: Mapping[str, str], steps: Mapping[str, Step], facts: Mapping[str, Any]
) -> Plan:
    """Make the plan without what failed; the result says which points that were, and why."""
    alive = [run for run in runs if run.bundle not in failed]
    points: dict[str, dict[int, RunInputs[str]]] = {}
    for run in alive:
        points.setdefault(run.point, {})[run.seed] = RunInputs(run.bundle, run.views)
    reasons = {run.point: failed[run.bundle] for run in runs if run.bundle in failed}
    last = experiment.plan(ExperimentParams(**facts, failed=reasons), ExperimentInputs[str](points))
    wanted = frozenset().union(*(run.steps for run in alive))

    def without(key: str, reason: str) -> Plan | None:
        lost = {run.bundle: reason for run in alive if key in run.steps}
        if not lost or len(lost) == len({run.bundle for run in alive}):
            return None
        return _plan(runs, {**failed, **lost}, steps, facts)

    return Plan(
        steps=(*(step for key, step in steps.items() if key in wanted), last),
        result=last.key,
        parts=tuple({run.bundle: run.part for run in alive}.values()),
        without=without,
    )
