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

A point is a recipe and the state of its report that is looked at; points with equal recipes share their run. Sizes may
be written by the encoder's: ``d/8`` is an eighth of the feature width, ``w/4`` a quarter of a token's, ``blocks-1`` the
last block. ``each: 2`` repeats a point for every two of the zoo's experts in turn, named ``{each}`` in its list, and
``tune`` tries values of which validation images choose, in domain or by what ``keeps`` asks of others, or the scored
images themselves, in every run anew, where a point ``peeks``;
``ask: {VIEW: {…}}`` sets what a view is asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from ..catalog import CALIBRATORS, MERGE_METHODS, TRANSFORMS, Row, resolve
from ..errors import RecipeError, nearest
from ..manifest import ASSETS
from ..recipe import LATER, Frozen, Recipe, Sparse, explain, parse_recipe, read_yaml
from ..sweeps.grid import SweepRequest
from .sizes import Shape, names_group, scaled, shape_of, with_group, worded

FOLDER = ASSETS / "experiments"
BUNDLED = "mini8"  # where an experiment names no zoo
MAX_POINTS = 60
MAX_SEEDS = 10
Relation = Literal["above", "below", "near", "above_or_near", "rises_with", "falls_with"]


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


class Point(Sparse):
    """A recipe, given by what differs from the experiment's base, and the state that is looked at."""

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    title: str
    set: dict[str, Any] = Field(default_factory=dict)  # parts of a recipe that replace the base's
    state: str = "merged"
    control: bool = False  # not part of the claim, but what the claim has to stand up to
    quick: bool = True  # whether the quick form has it
    each: int = Field(0, ge=0, le=64)  # experts of a group; the point is measured for every group in turn
    tune: dict[str, tuple[Any, ...]] = Field(default_factory=dict)  # places and values that validation images choose of
    # Of the values tried in turn, take the last that leaves this share of the pretrained model's accuracy on validation
    # images of the tasks out of domain, instead of the most accurate in domain.
    keeps: Annotated[float, LATER] = Field(0.0, ge=0, le=1)
    # Every run takes what is most accurate on the images that are scored: what some published programs report, and
    # here a fault to be looked at.
    peeks: Annotated[bool, LATER] = False
    # View → what it is asked at this point, where that is not its default.
    ask: Annotated[dict[str, dict[str, Any]], LATER] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _peeks_at_choices(self) -> Point:
        if self.peeks and (not self.tune or self.keeps):
            raise ValueError(f"point '{self.name}' peeks, which is for one that tunes by accuracy in domain")
        return self

    @property
    def chosen_by(self) -> str:
        """Return in words what decides between the values that are tried."""
        if self.peeks:
            return "accuracy in domain of each run by itself"
        if not self.keeps:
            return "accuracy in domain"
        return f"the last that leaves {100 * self.keeps:g} % of the pretrained model's accuracy out of domain"


class Measure(Frozen):
    """A number of a finished run: a place in its report or in a view on it, or an analysis of what it left."""

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    title: str
    path: str = ""  # see `places`; {state} is the point's; of a report's table of tasks, in-domain ones count
    view: str = ""  # the view whose document the path is in; empty for the run's report
    analysis: str = ""  # a row of the pipeline's ANALYSES, with its params
    params: dict[str, Any] = Field(default_factory=dict)
    unit: str = "%"
    exact: bool = False  # a count that no image and no chance plays a part in

    @model_validator(mode="after")
    def _one_source(self) -> Measure:
        if bool(self.path) == bool(self.analysis):
            raise ValueError("a measure has either a path or an analysis")
        if self.view and not self.path:
            raise ValueError("a measure of a view names the path of its number")
        return self

    def digest(self) -> str:
        """Return what tells whether a number is this measure, whatever it is called."""
        return _digest(self.model_dump(mode="json", include={"path", "view", "analysis", "params"}))


class Check(Sparse):
    """A comparison of two points: a clause of the claim, or an objection to it."""

    text: str
    paper: str = ""  # what the paper says of it, by table or figure, in the paper's own terms
    measure: str
    left: str = ""
    relation: Relation
    right: str = ""
    right_measure: str = ""  # where the right side is another number
    over: tuple[str, ...] = ()  # points whose two measures rise or fall with each other, in place of left and right
    margin: float = 0.5  # differences up to it count as none, in the measure's unit
    plus: float = 0.0  # what the right side is raised by before it is compared
    control: bool = False  # an objection: where it holds, the claim is not the explanation
    asked: Annotated[bool, LATER] = False  # a clause that is asked here and not the paper's, so no part of the verdict
    name: str = Field("", pattern=r"^[a-z0-9_]*$")  # of a clause, for objections to it
    explains: tuple[str, ...] = ()  # of an objection: names of clauses; empty: all of them

    @property
    def correlates(self) -> bool:
        """Return whether it is about two measures over several points."""
        return self.relation in ("rises_with", "falls_with")

    @model_validator(mode="after")
    def _two_sides(self) -> Check:
        if self.correlates and (len(self.over) < 4 or not self.right_measure or self.left or self.right):
            raise ValueError(f"check '{self.text}' needs four points or more (over) and a right_measure, and no sides")
        if not self.correlates and (not self.left or not self.right or self.over):
            raise ValueError(f"check '{self.text}' needs a left and a right point, and nothing in over")
        return self


class Quick(Frozen):
    """The quick form: fewer images and shorter training; it has one seed."""

    probe: dict[str, Any] = Field(default_factory=dict)  # keys of the recipe's probe that are replaced
    steps: int | None = Field(None, ge=1)  # calibrators and merges that learn take so many at most


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
    section: Literal["claims", "practice"] = "claims"  # what a paper says, or how results are come by
    zoo: str = BUNDLED  # that it is meant for: a bundled one's name; any other may be asked for
    headline: bool = False  # the comparison that a paper rests on: judged with two sets of experts
    seeds: int = Field(5, ge=1, le=MAX_SEEDS)  # training seeds, from 0
    minutes: float = 10  # budget on two cores
    quick: Quick = Field(default_factory=lambda: Quick())

    @model_validator(mode="after")
    def _names_exist(self) -> Experiment:
        points, measures = [point.name for point in self.points], [measure.name for measure in self.measures]
        clauses = [check.name for check in self.checks if check.name and not check.control]
        for kind, names in (("point", points), ("measure", measures), ("clause", clauses)):
            if len(set(names)) < len(names):
                raise ValueError(f"two {kind}s have the same name")
        read = {measure.view for measure in self.measures}
        for point in self.points:
            if strange := next((view for view in point.ask if view not in read), None):
                raise ValueError(f"point '{point.name}' asks something of the view '{strange}', which no measure reads")
        for check in self.checks:
            measured = [name for name in (check.measure, check.right_measure) if name]
            sides = [*check.over, *filter(None, (check.left, check.right))]
            for kind, asked, names in (
                ("measure", measured, measures),
                ("point", sides, points),
                ("clause", check.explains, clauses),
            ):
                if unknown := next((name for name in asked if name not in names), None):
                    raise ValueError(f"check '{check.text}' names no {kind}: {nearest(unknown, names)}")
        return self

    def digest(self) -> str:
        """Return what tells whether a result belongs to this form of the experiment: 16 digits of SHA-256."""
        judged = self.model_dump(mode="json", include={"claim", "base", "points", "measures", "checks", "seeds"})
        return _digest(judged)

    def measured(self) -> str:
        """Return what tells whether a result has this form's points, whatever is said and asked of them."""
        taken = self.model_dump(mode="json", include={"base", "points", "seeds"})
        for point in taken["points"]:
            point.pop("title")
            point.pop("control")
        return _digest(taken)

    def taken(self) -> dict[str, str]:
        """Return what tells whether a result has this form's measures, by name."""
        return {measure.name: measure.digest() for measure in self.measures}

    def updates(self, *, quick: bool = False) -> list[int]:
        """Return for how many updates a task calibrators are trained, ascending; none where some are tuned."""
        if any(place.startswith("calibrators.") for point in self.points for place in point.tune):
            return []
        found = set()
        for point in (point for point in self.points if point.quick or not quick):
            for call in {**self.base, **point.set}.get("calibrators", ()):
                if call.get("name", call["method"]) == point.state and call["method"] in CALIBRATORS:
                    default = CALIBRATORS[call["method"]].params.model_fields["steps"].default
                    found.add(call.get("params", {}).get("steps", default))
        return sorted({min(steps, self.quick.steps) for steps in found} if quick and self.quick.steps else found)

    def recipes(self, zoo: str, *, quick: bool = False) -> list[Variant]:
        """Return every run of every point, resolved.

        Raises:
            EngineError: the zoo cannot be read.
            RecipeError: a recipe that cannot be used, with the point's title.
        """
        shape = shape_of(zoo)
        asked = [point for point in self.points if point.quick or not quick]
        return [variant for point in asked for variant in self.variants(point, zoo, shape, quick=quick)]

    def variants(self, point: Point, zoo: str, shape: Shape, *, quick: bool = False) -> list[Variant]:
        """Return the runs of a point: every group of experts, every value that is tried, every seed.

        What neither trains nor draws gives the same with every seed and is there once.

        Raises:
            RecipeError: a recipe that cannot be used, with the point's title.
        """
        try:
            parts = scaled({**self.base, **point.set}, shape.sizes)
            found, tried = [], scaled(point.tune, shape.sizes)
            if point.each and not names_group(parts.get("experts")):
                raise RecipeError("The point is measured for groups of experts, and its recipe names no '{each}'.")
            for group in _groups(point.each, shape.experts):
                experts = with_group(parts.get("experts", "all"), group)
                given = parse_recipe({"zoo": zoo, **parts, "experts": experts, "seeds": [0]})
                for values, recipe in _tried(_quickly(given, self.quick) if quick else given, tried, quick=quick):
                    for seed in range(1 if quick or not seed_matters(recipe) else self.seeds):
                        found.append(Variant(point, seed, group, values, resolve(_seeded(recipe, seed))))
        except RecipeError as error:
            raise RecipeError(f"{self.name}, {worded(point.title, shape.sizes)}: {error}") from error
        return found


@dataclass(frozen=True)
class Variant:
    """One run of a point."""

    point: Point
    seed: int
    group: tuple[str, ...]  # experts whose turn it is; empty where the point has none
    values: tuple[Any, ...]  # of the places that are tuned
    recipe: Recipe  # resolved


def seed_matters(recipe: Recipe) -> bool:
    """Return whether a run trains or draws anything."""
    return merge_matters(recipe) or bool(recipe.calibrators)


def merge_matters(recipe: Recipe) -> bool:
    """Return whether a run's merge learns or draws anything."""
    row = MERGE_METHODS[recipe.merge.method]
    drawn = any(TRANSFORMS[call.method].stochastic for call in recipe.transforms)
    return row.stochastic or bool(row.learns) or drawn


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
        file = FOLDER / f"{name}.yaml"
        return _kept(str(file), file.stat().st_mtime_ns)  # a page asks for all of them again and again
    return _read(path)


@cache
def _kept(path: str, modified: int) -> Experiment:
    return _read(Path(path))


def _read(path: Path) -> Experiment:
    document = read_yaml(path, RecipeError, "experiment")
    try:
        return Experiment.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"The experiment {path.name} cannot be used: {explain(error, Experiment)}") from error


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _quickly(recipe: Recipe, changes: Quick) -> Recipe:
    """Return a recipe on fewer images (``probe``) and with shorter training (``steps``)."""
    found = recipe.model_dump(mode="json")
    found["probe"] |= changes.probe
    if changes.steps:
        for call, rows in [(found["merge"], MERGE_METHODS), *((call, CALIBRATORS) for call in found["calibrators"])]:
            _shorten(call, rows, changes.steps)
    return parse_recipe(found)


def _shorten(call: dict[str, Any], rows: Mapping[str, Row], steps: int) -> None:
    """Let a method that takes steps take so many at most."""
    row = rows.get(call["method"])
    if row is not None and (own := row.params.model_fields.get("steps")):
        call["params"] = {**call["params"], "steps": min(call["params"].get("steps", own.default), steps)}


def _groups(count: int, experts: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the zoo's experts in groups of so many, without a rest; one empty group where none are asked for."""
    if not count:
        return [()]
    if len(experts) < count:
        raise RecipeError(f"This needs groups of {count} experts; the zoo has {len(experts)}.")
    return [tuple(experts[start : start + count]) for start in range(0, len(experts) - count + 1, count)]


def _tried(recipe: Recipe, tune: Mapping[str, Sequence[Any]], *, quick: bool) -> list[tuple[tuple[Any, ...], Recipe]]:
    """Return the recipe with every combination of the values that are tried; in the quick form of two values each."""
    if not tune:
        return [((), recipe)]
    settings = [{"place": place, "values": values[:2] if quick else values} for place, values in tune.items()]
    asked = SweepRequest.parse({"recipe": recipe.model_dump(mode="json"), "settings": settings})
    return [(point.values, point.recipe) for point in asked.points()]


def _seeded(recipe: Recipe, seed: int) -> Recipe:
    return recipe.model_copy(update={"seeds": (seed,)})
