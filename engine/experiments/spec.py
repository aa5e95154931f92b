"""Experiments: a claim, the published numbers, recipes to compare, and what would bear the claim out.

An experiment is a YAML file under ``assets/experiments/``::

    name: scaling
    claim: "…"
    base: {merge: {method: task_arithmetic}}          # a recipe; the zoo is the user's
    points:
      - {name: low, title: "λ = 0.1", set: {merge: {method: task_arithmetic, params: {scaling: 0.1}}}}
    measures:
      - {name: in, title: "In-domain accuracy", path: "average.{state}.in", unit: "%"}
    checks:
      - {text: "…", measure: in, left: low, relation: above, right: pretrained}

A point is a recipe and the state of its report that is looked at; points with equal recipes share their run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from ..catalog import MERGE_METHODS, TRANSFORMS, resolve
from ..errors import RecipeError, nearest
from ..manifest import ASSETS
from ..recipe import Frozen, Recipe, explain, parse_recipe, read_yaml

FOLDER = ASSETS / "experiments"
MAX_POINTS = 60
MAX_SEEDS = 10
Relation = Literal["above", "below", "near", "above_or_near"]


class Published(Frozen):
    """Numbers of a paper, for the zoo that they belong to."""

    source: str
    zoo: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]  # a name, then one value a column
    note: str = ""

    @model_validator(mode="after")
    def _rectangular(self) -> Published:
        for row in self.rows:
            if len(row) != len(self.columns) + 1:
                raise ValueError(f"the row {row[0]!r} has {len(row) - 1} values for {len(self.columns)} columns")
        return self


class Point(Frozen):
    """A recipe, given by what differs from the experiment's base, and the state that is looked at."""

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    title: str
    set: dict[str, Any] = Field(default_factory=dict)  # parts of a recipe that replace the base's
    state: str = "merged"
    control: bool = False  # not part of the claim, but what the claim has to stand up to
    quick: bool = True  # whether the quick form has it


class Measure(Frozen):
    """A number of a finished run: a place in its report or in a view on it, or an analysis of what it left."""

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    title: str
    path: str = ""  # see `places`; {state} is the point's; of a report's table of tasks, in-domain ones count
    view: str = ""  # the view whose document the path is in; empty for the run's report
    analysis: str = ""  # a row of the pipeline's ANALYSES
    params: dict[str, Any] = Field(default_factory=dict)
    unit: str = "%"

    @model_validator(mode="after")
    def _one_source(self) -> Measure:
        if bool(self.path) == bool(self.analysis):
            raise ValueError("a measure has either a path or an analysis")
        if self.view and not self.path:
            raise ValueError("a measure of a view names the path of its number")
        return self


class Check(Frozen):
    """A comparison of two points that a claim, or an objection to it, comes down to."""

    text: str
    measure: str
    left: str
    relation: Relation
    right: str
    right_measure: str = ""  # where the right side is another number
    margin: float = 0.5  # differences up to it count as none, in the measure's unit
    plus: float = 0.0  # what the right side is raised by before it is compared
    control: bool = False  # an objection: where it holds, the claim is not the explanation


class Quick(Frozen):
    """The quick form: fewer images and shorter training; it has one seed."""

    probe: dict[str, Any] = Field(default_factory=dict)  # keys of the recipe's probe that are replaced
    steps: int | None = Field(None, ge=1)  # calibrators train for so many at most


class Experiment(Frozen):
    """A claim, what it was based on, and how to look at it here."""

    format: Literal[1] = 1
    name: str = Field(pattern=r"^[a-z0-9-]+$")
    title: str
    paper: str
    part: str  # which table or figure
    claim: str
    base: dict[str, Any]
    points: tuple[Point, ...] = Field(min_length=1, max_length=MAX_POINTS)
    measures: tuple[Measure, ...] = Field(min_length=1)
    checks: tuple[Check, ...] = ()
    published: Published | None = None
    remark: str = ""
    seeds: int = Field(3, ge=1, le=MAX_SEEDS)  # training seeds, from 0
    minutes: float = 10  # budget on two cores
    quick: Quick = Field(default_factory=lambda: Quick())

    @model_validator(mode="after")
    def _names_exist(self) -> Experiment:
        points, measures = [point.name for point in self.points], [measure.name for measure in self.measures]
        for kind, names in (("point", points), ("measure", measures)):
            if len(set(names)) < len(names):
                raise ValueError(f"two {kind}s have the same name")
        for check in self.checks:
            for name in filter(None, (check.measure, check.right_measure)):
                if name not in measures:
                    raise ValueError(f"check '{check.text}' names no measure: {nearest(name, measures)}")
            for side in (check.left, check.right):
                if side not in points:
                    raise ValueError(f"check '{check.text}' names no point: {nearest(side, points)}")
        return self

    def recipes(self, zoo: str, *, quick: bool = False) -> list[tuple[Point, int, Recipe]]:
        """Return every point with every seed, resolved.

        What neither trains nor draws gives the same with every seed and is there once.

        Raises:
            RecipeError: a recipe that cannot be used, with the point's title.
        """
        found = []
        for point in self.points:
            if quick and not point.quick:
                continue
            parts = {**self.base, **point.set}
            if quick:
                parts = _quickly(parts, self.quick)
            seeds = range(1 if quick else self.seeds)
            for seed in seeds:
                try:
                    recipe = resolve(parse_recipe({"zoo": zoo, **parts, "seeds": [seed]}))
                except RecipeError as error:
                    raise RecipeError(f"{self.name}, {point.title}: {error}") from error
                if seed and not seed_matters(recipe):
                    break
                found.append((point, seed, recipe))
        return found


def seed_matters(recipe: Recipe) -> bool:
    """Return whether a run trains or draws anything."""
    row = MERGE_METHODS[recipe.merge.method]
    drawn = row.stochastic or bool(row.learns) or any(TRANSFORMS[call.method].stochastic for call in recipe.transforms)
    return drawn or bool(recipe.calibrators)


def experiment_names() -> list[str]:
    """Return the experiments that come with the app, in alphabetical order."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_experiment(name: str | Path) -> Experiment:
    """Read an experiment by its name, or from a file.

    Raises:
        RecipeError: there is none, or what is wrong with it.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        names = experiment_names()
        if str(name) not in names:
            raise RecipeError(f"There is no experiment '{name}'. {nearest(str(name), names)}")
        path = FOLDER / f"{name}.yaml"
    document = read_yaml(path, RecipeError, "experiment")
    try:
        return Experiment.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"The experiment {path.name} cannot be used: {explain(error, Experiment)}") from error


def _quickly(parts: Mapping[str, Any], changes: Quick) -> dict[str, Any]:
    """Return a recipe on fewer images (``probe``) and with shorter training (``steps``)."""
    found = dict(parts)
    if changes.probe:
        found["probe"] = {**found.get("probe", {}), **changes.probe}
    if changes.steps:
        found["calibrators"] = [_shortened(call, changes.steps) for call in found.get("calibrators", ())]
    return found


def _shortened(call: Mapping[str, Any], steps: int) -> dict[str, Any]:
    params = call.get("params", {})
    return {**call, "params": {**params, "steps": min(params.get("steps", steps), steps)}}
