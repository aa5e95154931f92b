"""From places and values to recipes: every point of a sweep is a recipe of its own."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import yaml
from pydantic import Field, ValidationError, field_validator

from ..catalog import CALIBRATORS, MERGE_METHODS, TRANSFORMS, resolve
from ..catalog.titles import method_title
from ..errors import EngineError, RecipeError, nearest
from ..recipe import Frozen, Recipe, explain, parse_recipe
from .places import place_title

MAX_POINTS = 200
MAX_PLACES = 2
RANGE = re.compile(r"\s*[-+.\d][-+.\de]*\s*(:\s*[-+.\de]*\s*)+", re.IGNORECASE)  # or what was meant as one
TABLES: dict[str, Mapping[str, Any]] = {
    "merge": MERGE_METHODS,
    "transforms": TRANSFORMS,
    "calibrators": CALIBRATORS,
}


class Setting(Frozen):
    """One place of a recipe and the values it takes."""

    place: str = Field(min_length=1, max_length=200)
    values: tuple[Any, ...] = Field(min_length=1)

    @field_validator("values")
    @classmethod
    def _once(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return each value once; 1 and true are two."""
        return tuple({(type(value).__name__, str(value)): value for value in values}.values())


@dataclass(frozen=True)
class Point:
    """One combination of values."""

    number: int  # counted from 0, in the order of the grid
    values: tuple[Any, ...]  # one a setting
    recipe: Recipe  # resolved
    title: str  # for people, e.g. "Scaling coefficient λ 0.3"


class SweepRequest(Frozen):
    """The request of a sweep."""

    recipe: Recipe
    settings: tuple[Setting, ...] = Field(min_length=1)

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> SweepRequest:
        """Validate a request.

        Raises:
            RecipeError: what is wrong with it.
        """
        recipe = parse_recipe(document.get("recipe"))
        try:
            return cls.model_validate({**document, "recipe": recipe})
        except ValidationError as error:
            raise RecipeError(f"The sweep cannot be used: {explain(error, cls)}") from error

    @property
    def places(self) -> tuple[str, ...]:
        """Return the places that are varied."""
        return tuple(setting.place for setting in self.settings)

    def titles(self) -> tuple[str, ...]:
        """Return the places' titles."""
        return tuple(place_title(self.recipe, place) for place in self.places)

    def count(self) -> int:
        """Count the points.

        Raises:
            RecipeError: too many, or places that cannot be varied together.
        """
        if len(self.settings) > MAX_PLACES:
            raise RecipeError(f"A sweep varies one or two places of a recipe; {len(self.settings)} are given.")
        if len(set(self.places)) < len(self.places):
            raise RecipeError(f"'{self.places[0]}' is given twice; write all its values in one setting.")
        total = 1
        for setting in self.settings:
            total *= len(setting.values)
        if total > MAX_POINTS:
            raise RecipeError(
                f"The sweep has {total:,} runs; at most {MAX_POINTS} are done at a time. Take a larger step or a "
                "smaller range."
            )
        return total

    def points(self) -> list[Point]:
        """Return every combination, the last place varying fastest.

        Raises:
            RecipeError: too many, no such place, or a value that its place does not take, with the point's values.
        """
        self.count()
        document = resolve(self.recipe).model_dump(mode="json")
        titles = self.titles()
        found = []
        for number, values in enumerate(itertools.product(*(setting.values for setting in self.settings))):
            title = point_title(titles, values)
            changed = copy.deepcopy(document)
            for place, value in _methods_first(zip(self.places, values, strict=True)):
                set_place(changed, place, value)
            try:
                recipe = resolve(parse_recipe(changed))
            except EngineError as error:
                raise RecipeError(f"{title}: {error}") from error
            found.append(Point(number, values, recipe, title))
        return found


def parse_setting(text: str) -> tuple[str, list[Any]]:
    """Read ``merge.params.scaling=0.1:0.5:0.1`` or ``merge.method=ties,tsv_m``.

    Raises:
        RecipeError: no value, or a range that does not end.
    """
    place, separator, values = text.partition("=")
    if not separator or not values.strip() or not place.strip():
        raise RecipeError(f"'{text}' sets nothing; write it as place=start:stop:step or place=a,b,c.")
    return place.strip(), parse_values(values)


def parse_values(values: str) -> list[Any]:
    """Read ``0.1:0.5:0.1`` or ``a,b,c``.

    Raises:
        RecipeError: a range without a step or an end, or a value that cannot be read.
    """
    if values.count(":") != 2:
        return [_value(part) for part in values.split(",") if part.strip()]
    try:
        start, stop, step = (Decimal(part.strip()) for part in values.split(":"))
    except InvalidOperation as error:
        raise RecipeError(f"'{values}' is no range of numbers; write it as start:stop:step.") from error
    finite = all(number.is_finite() and math.isfinite(float(number)) for number in (start, stop, step))
    if not finite or not (step > 0 and stop >= start) or stop - start >= MAX_POINTS * step:
        raise RecipeError(f"The range {values} does not lead from its start to its stop in at most {MAX_POINTS} steps.")
    count = int((stop - start) / step) + 1
    numbers = [start + index * step for index in range(count)]
    whole = all(number == number.to_integral_value() for number in (start, stop, step))
    return [int(number) if whole else float(number) for number in numbers]


def set_place(document: dict[str, Any], place: str, value: Any) -> None:
    """Set one value of a recipe document; calibrators and transforms are named by number, name or method.

    Another method keeps only those parameters that it has; the others have its defaults.

    Raises:
        RecipeError: there is no such place, with the nearest one.
    """
    *path, last = place.split(".")
    target: Any = document
    for part in path:
        target = _inside(target, part, place)
    if not isinstance(target, dict):
        raise RecipeError(f"'{place}' names no key of the recipe.")
    if last not in target and not (path and path[-1] == "params"):
        raise RecipeError(f"The recipe has no '{place}'. {nearest(last, target)}")
    if last == "method" and path and path[0] in TABLES and isinstance(value, str) and value in TABLES[path[0]]:
        fields = TABLES[path[0]][value].params.model_fields
        target["params"] = {name: kept for name, kept in target.get("params", {}).items() if name in fields}
    target[last] = value


def point_title(titles: Sequence[str], values: Sequence[Any]) -> str:
    """Return a point in words, such as ``Scaling coefficient λ 0.3, Density 0.2``."""
    return ", ".join(f"{title} {value_text(value)}" for title, value in zip(titles, values, strict=True))


def sweep_title(request: SweepRequest) -> str:
    """Return the title of a sweep until somebody gives it another name."""
    return f"{' × '.join(request.titles())} of {method_title(request.recipe.merge.method)}"


def value_text(value: Any) -> str:
    """Return a value for people."""
    return f"{value:g}" if isinstance(value, float) else method_title(str(value))


def _methods_first(pairs: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return a method decides which parameters there are, so it is set before them."""
    return sorted(pairs, key=lambda pair: not pair[0].endswith(".method"))


def _value(text: str) -> Any:
    if RANGE.fullmatch(text):  # YAML reads some of them as minutes and seconds
        raise RecipeError(f"'{text.strip()}' is no range of numbers; write it as start:stop:step.")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"'{text.strip()}' is no value; give numbers or words, separated by commas.") from error


def _inside(target: Any, part: str, place: str) -> Any:
    if isinstance(target, list):
        if part.isdigit() and int(part) < len(target):
            return target[int(part)]
        entries = [entry for entry in target if isinstance(entry, dict)]
        named = [entry for entry in entries if part in (entry.get("name"), entry.get("method"))]
        if len(named) == 1:
            return named[0]
        raise RecipeError(
            f"'{place}': found '{part}'; there are {len(target)} entries, numbered from 0"
            + (f", named {', '.join(str(e.get('name') or e.get('method')) for e in entries)}." if entries else ".")
        )
    if not isinstance(target, dict) or part not in target:
        raise RecipeError(f"The recipe has no '{place}'. {nearest(part, target if isinstance(target, dict) else ())}")
    return target[part]
