"""Places of a recipe that can be varied, with their bounds; made from the catalog's rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from ..catalog import CALIBRATORS, MERGE_METHODS, TRANSFORMS, Row, is_parity
from ..recipe import Recipe

Kind = Literal["number", "whole", "choice"]
OTHERS = {
    "merge.method": "Merge method",
    "transforms.0.method": "Transform",
    "probe.samples_per_task": "Images a task",
    "probe.split_seed": "Split seed",
    "probe.protocol": "Protocol",
}


@dataclass(frozen=True)
class Place:
    """A value of a recipe that can be varied."""

    place: str  # e.g. merge.params.scaling
    title: str  # for people
    kind: Kind
    value: Any  # what the recipe has there
    low: float | None = None
    high: float | None = None
    open_low: bool = False  # the bound itself is not valid
    open_high: bool = False
    choices: tuple[str | bool, ...] = ()
    description: str = ""


def places(recipe: Recipe) -> list[Place]:
    """Return places of a recipe that take numbers or choices: method and parameters, in the order of the form.

    Args:
        recipe: resolved, so that every parameter is there.
    """
    found = []
    for prefixes, owner, row, params in _calls(recipe):
        for name, field in row.params.model_fields.items():
            place = _place(f"{prefixes[0]}.params.{name}", field, params.get(name), owner)
            if place is not None and not is_parity(field):
                found.append(place)
    methods = tuple(row.name for row in MERGE_METHODS.values())
    return [*found, Place("merge.method", OTHERS["merge.method"], "choice", recipe.merge.method, choices=methods)]


def place_title(recipe: Recipe, place: str) -> str:
    """Return the title of a place; the place itself where it has none."""
    where, _, name = place.rpartition(".params.")
    for prefixes, owner, row, _ in _calls(recipe):
        if where in prefixes and name in row.params.model_fields:
            return _title(row.params.model_fields[name], name, owner)
    return OTHERS.get(place, place)


def numbered(recipe: Recipe, place: str) -> str:
    """Return a place with calls by their number, as places are listed; others as they are.

    Args:
        recipe: that the place is of.
        place: such as ``calibrators.surgery.params.rank``, which becomes ``calibrators.0.params.rank``.
    """
    where, _, name = place.rpartition(".params.")
    first = next((prefixes[0] for prefixes, *_ in _calls(recipe) if where in prefixes), None)
    return place if first is None else f"{first}.params.{name}"


def _calls(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], str, Row, Mapping[str, Any]]]:
    """Return prefixes, title of the owner (empty for the merge), row and params of every method that a recipe calls."""
    if recipe.merge.method in MERGE_METHODS:
        yield ("merge",), "", MERGE_METHODS[recipe.merge.method], recipe.merge.params
    for number, call in enumerate(recipe.transforms):
        if call.method in TRANSFORMS:
            row, prefixes = TRANSFORMS[call.method], (f"transforms.{number}", f"transforms.{call.method}")
            yield prefixes, row.title, row, call.params
    for number, call in enumerate(recipe.calibrators):
        if call.method in CALIBRATORS:
            row = CALIBRATORS[call.method]
            owner = row.title if call.name == call.method else f"{row.title} ({call.name})"
            names = dict.fromkeys((str(number), call.name, call.method))
            yield tuple(f"calibrators.{name}" for name in names), owner, row, call.params


def _place(place: str, field: FieldInfo, value: Any, owner: str) -> Place | None:
    title, hint = _title(field, place.rpartition(".")[2], owner), field.description or ""
    if field.annotation is bool:
        return Place(place, title, "choice", value, choices=(False, True), description=hint)
    if get_origin(field.annotation) is Literal:
        return Place(place, title, "choice", value, choices=get_args(field.annotation), description=hint)
    if field.annotation not in (int, float):
        return None
    low, high = (_bound(field, *names) for names in (("ge", "gt"), ("le", "lt")))
    return Place(
        place,
        title,
        "whole" if field.annotation is int else "number",
        value,
        low,
        high,
        _bound(field, "gt") is not None,
        _bound(field, "lt") is not None,
        description=hint,
    )


def _title(field: FieldInfo, name: str, owner: str) -> str:
    title = field.title or name.replace("_", " ")
    return f"{owner}: {title}" if owner else title


def _bound(field: FieldInfo, *names: str) -> float | None:
    return next((getattr(item, name) for item in field.metadata for name in names if hasattr(item, name)), None)
