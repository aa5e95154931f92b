"""From an experiment to a plan: the union of the steps of its runs, and what is measured on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import EngineError, RecipeError, ZooError
from ...experiments import Experiment, Point, Variant, read_experiment
from ...experiments.sizes import scaled, shape_of
from ...recipe import Request
from ...store import Store
from ...zoo.folder import Zoo
from ..graph import Part, Plan
from ..run.plan import RunSteps
from ..run.summing import sum_where_cheaper
from ..sources import Sources
from ..steps import Step, closure
from ..viewing.base import View
from ..views import view_of
from .measure import ExperimentInputs, ExperimentParams, RunFacts, RunInputs, ZooFacts, experiment
from .sides import check_measures
from .sweep import add_others, add_validation, choose_split


class ExperimentRequest(Request):
    """Request to repeat an experiment on a zoo."""

    REFUSAL = "The experiment cannot be repeated"

    name: str  # an experiment of the app, or a file
    zoo: str = ""  # a bundled zoo's name or a path; empty: the one that the experiment is meant for
    quick: bool = False


@dataclass(frozen=True)
class PlannedRun:
    """One recipe of an experiment with its steps."""

    variant: Variant
    bundle: str
    part: Part
    views: Mapping[str, str]  # name → key of what the view leaves
    choice: str  # key of its accuracy on the images that are tuned on; empty where nothing is tuned
    others: str  # key of its accuracy on other tasks' images; empty where the choice is not limited by them
    steps: frozenset[str]  # keys of everything it needs, itself included


def plan_experiment(asked: ExperimentRequest, store: Store) -> Plan:
    """Plan an experiment.

    Raises:
        RecipeError: no such experiment, or no point of it that this zoo allows.
        EngineError: the zoo cannot be used.
    """
    spec = read_experiment(asked.name)
    place = asked.zoo or spec.zoo
    zoo, shape = Zoo.open(place), shape_of(place)
    views = views_of(spec)
    check_measures(spec)
    steps: dict[str, Step] = {}
    runs: list[PlannedRun] = []
    failed: dict[str, str] = {}
    splits: dict[str, str] = {}
    opened: dict[str, list[tuple[Variant, RunSteps]]] = {}
    points = {point.name: point for point in spec.points if point.quick or not asked.quick}
    for point in points.values():
        try:
            variants = spec.variants(point, place, shape, quick=asked.quick)
            opened[point.name] = [(variant, RunSteps(zoo, variant.recipe, store)) for variant in variants]
        except EngineError as error:
            failed[point.name] = str(error)
    sum_where_cheaper(run for made in opened.values() for _, run in made)
    for name, made in opened.items():
        point, added = points[name], dict(steps)
        for _, run in made:
            run.steps = added
        try:
            split = _split(point, [run for _, run in made])
            runs += [_planned(spec, variant, run, views, split, shape.sizes) for variant, run in made]
        except EngineError as error:
            failed[point.name] = str(error)
            continue
        steps.update(added)
        splits |= {point.name: split} if split else {}
    if not runs:
        raise RecipeError(f"This zoo allows no part of {spec.name}. {next(iter(failed.values()), '')}".strip())
    facts = {
        "experiment": spec,
        "quick": asked.quick,
        "zoo": ZooFacts(
            name=zoo.manifest.name,
            digest=zoo.digest(store.digest_file),
            sizes=dict(shape.sizes),
            kind=zoo.manifest.modality,
        ),
        "splits": splits,
        "sources": Sources(zoo=str(zoo.folder)),
    }
    return _plan(runs, {}, failed, steps, facts)


def check_sets(zoos: Sequence[str], store: Store) -> None:
    """Refuse zoos that differ in more than their experts before hours are spent on them.

    Args:
        zoos: names or paths, each with a set of experts.
        store: knows digests of files.

    Raises:
        EngineError: two are the same, one is of another name or has another base or other samples, or cannot be opened.
    """
    opened = [Zoo.open(place) for place in zoos]
    if len({zoo.digest(store.digest_file) for zoo in opened}) < len(opened):
        raise ZooError("Two of the zoos are the same, so that their results are one. Name sets of other seeds.")
    for zoo in opened[1:]:
        ours, theirs = (_beside_experts(each, store) for each in (opened[0], zoo))
        if odd := next((what for what in ours if ours[what] != theirs.get(what)), ""):
            raise ZooError(
                f"{opened[0].folder} and {zoo.folder} differ in their {odd}. Sets of experts by other seeds share all "
                "else, as those do that `zoo build NAME --expert-seed N` makes."
            )


def _beside_experts(zoo: Zoo, store: Store) -> dict[str, Any]:
    """Return what sets of experts share, by what people call it."""
    data = {f"data of {task}": data.identity(store.digest_file) for task, data in zoo.data.items()}
    return {
        "name": zoo.manifest.name,
        "base": store.digest_file(zoo.weights_path("base")),
        "list of tasks": [task.name for task in zoo.manifest.tasks],
        **data,
    }


def _split(point: Point, runs: list[RunSteps]) -> str:
    """Return the images that a point is tuned on, nothing where it is not tuned.

    Raises:
        RecipeError: the zoo has none.
    """
    if not point.tune:
        return ""
    if point.peeks:
        return "evaluation"
    groups = {tuple(name for name, _ in run.experts) for run in runs}
    choices = [choose_split([run for run in runs if tuple(n for n, _ in run.experts) == group]) for group in groups]
    if any(choice.split is None for choice in choices):
        raise RecipeError(f"Nothing can be tuned: {next(c.reason for c in choices if c.split is None)}")
    return "validation" if all(choice.split == "validation" for choice in choices) else "adaptation"


def _planned(
    spec: Experiment,
    variant: Variant,
    run: RunSteps,
    views: Sequence[View[Any]],
    split: str,
    sizes: Mapping[str, int],
) -> PlannedRun:
    bundle = run.bundle()
    needed = closure(run.steps, [bundle])
    keys = {view.name: view.plan(run, asked_of(view, variant, sizes)) for view in views}
    choice = add_validation(run, split) if split and not variant.point.peeks else ""
    others = add_others(run) if split and variant.point.keeps else ""
    if split and variant.point.keeps and not others:
        raise RecipeError(
            "What others keep cannot be told: no task out of domain has validation images (val_x, val_y)."
        )
    read = closure(run.steps, [bundle, *keys.values(), *filter(None, (choice, others))])
    names = [", ".join(variant.group), ", ".join(map(str, variant.values)), f"seed {variant.seed}"]
    title = ", ".join([f"{spec.title}: {variant.point.title}", *filter(None, names)])
    request = {"recipe": variant.recipe.model_dump(mode="json")}
    part = Part(bundle, title, request, tuple(step.key for step in needed))
    return PlannedRun(variant, bundle, part, keys, choice, others, frozenset(step.key for step in read))


def views_of(spec: Experiment) -> list[View[Any]]:
    """Return the views that an experiment's measures read, each once."""
    return [view_of(name) for name in dict.fromkeys(measure.view for measure in spec.measures) if name]


def asked_of(view: View[Any], variant: Variant, sizes: Mapping[str, int]) -> Any:
    """Return what a view is asked at a point.

    Raises:
        RecipeError: the point asks what the view does not know.
    """
    asked = scaled(variant.point.ask.get(view.name, {}), sizes)
    return view.request.parse({"recipe": variant.recipe.model_dump(mode="json"), **asked})


def _plan(
    runs: list[PlannedRun],
    failed: Mapping[str, str],
    refused: Mapping[str, str],
    steps: Mapping[str, Step],
    facts: Mapping[str, Any],
) -> Plan:
    """Make the plan without points that failed or were refused; the result says which points those are, and why."""
    reasons = {**refused, **failed}
    alive = [run for run in runs if run.variant.point.name not in reasons]
    points: dict[str, dict[str, RunInputs[str]]] = {}
    places: dict[str, dict[str, RunFacts]] = {}
    for run in alive:
        point, variant = run.variant.point.name, run.variant
        name = str(len(points.setdefault(point, {})))
        points[point][name] = RunInputs(run.bundle, run.views, run.choice or None, run.others or None)
        facts_of = RunFacts(seed=variant.seed, group=variant.group, values=variant.values)
        places.setdefault(point, {})[name] = facts_of
    params = ExperimentParams(**facts, failed=reasons, runs=places)
    last = experiment.plan(params, ExperimentInputs[str](points))
    wanted = frozenset().union(*(run.steps for run in alive))

    def without(key: str, reason: str) -> Plan | None:
        lost = {run.variant.point.name: reason for run in alive if key in run.steps}
        if not lost or lost.keys() == points.keys():
            return None
        return _plan(runs, {**failed, **lost}, refused, steps, facts)

    return Plan(
        steps=(*(step for key, step in steps.items() if key in wanted), last),
        result=last.key,
        parts=tuple({run.bundle: run.part for run in alive}.values()),
        without=without,
    )
