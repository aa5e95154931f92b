"""Recipes as the form sees them: are they valid, how do they differ, what is their zoo. No widgets."""

from collections.abc import Mapping
from typing import Any

from engine.catalog import resolve
from engine.errors import EngineError
from engine.pipeline.run.findings import findings
from engine.recipe import Recipe, parse_recipe
from pages.shared.zoos import zoo_manifest


def check(document: Mapping[str, Any]) -> tuple[Recipe | None, list[str]]:
    """Return the recipe with its defaults written out, or everything that is wrong with it."""
    try:
        recipe = parse_recipe(dict(document), origin="form")
        found = findings(recipe, zoo_manifest(recipe.zoo))
        problems = [finding.text for finding in found if finding.level == "error"]
        return (None, problems) if problems else (resolve(recipe), [])
    except EngineError as error:
        return None, [str(error)]


def differences(before: Recipe, after: Recipe) -> list[str]:
    """List the differences between two recipes, one phrase each."""
    try:
        before = resolve(before)
    except EngineError:
        return ["method"]
    old, new = (_flat(recipe.model_dump(mode="json")) for recipe in (before, after))
    names = dict.fromkeys([*new, *old])
    return [
        f"{_name_of(name)} {_value_text(old, name)} → {_value_text(new, name)}"
        for name in names
        if old.get(name) != new.get(name)
    ]


def _flat(value: Any, place: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        items = ((item.get("name") or item.get("method"), item) for item in value)
    else:
        return {place: value}
    return {
        name: leaf
        for part, inner in items
        for name, leaf in _flat(inner, f"{place}.{part}" if place else str(part)).items()
    }


def _name_of(place: str) -> str:
    parts = [part for part in place.split(".") if part not in ("params", "merge", "probe", "method", "calibrators")]
    return " ".join(parts[-2:]).replace("_", " ") or "method"


def _value_text(values: Mapping[str, Any], name: str) -> str:
    return str(values[name]) if name in values else "none"
