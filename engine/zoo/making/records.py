"""Records of how a zoo's experts were trained, in words. Free of torch."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ...catalog import FINE_TUNING, params_of
from ...errors import EngineError
from ...manifest import STANDARD, Expert
from ...rounding import rounded

MAX_BYTES = 50_000_000  # of a build record that is read


def training_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the records of experts that were trained in a zoo, by name; empty where there are none to read."""
    path = folder / "build.json"
    try:
        if path.stat().st_size > MAX_BYTES:
            return {}
        found = json.loads(path.read_text("utf-8")).get("finetuned", {})
        return {name: record for name, record in found.items() if isinstance(record, dict)}
    except (OSError, ValueError, AttributeError):
        return {}


def recipe_title(expert: Expert) -> str:
    """Return what the recipe of an expert is called; its own word for one that the catalogue does not know."""
    row = FINE_TUNING.get(expert.method)
    return row.title if row else expert.method.replace("_", " ").capitalize()


def recipe_in_words(expert: Expert, record: Mapping[str, Any] | None, many: str) -> str:
    """Return how an expert was trained, in one sentence: recipe, parameters that were changed, length, accuracy.

    Args:
        expert: of the manifest.
        record: of its training, where there is one.
        many: what samples of its zoo are called, such as images.
    """
    title = recipe_title(expert)
    how = ", evaluated linearised" if expert.forward == "linearised" else ""
    if not record:
        return f"Recipe: {title}{how}."
    try:
        config, counts = record["config"], record["images"]
        accuracy = record["validation_accuracy"]
        changed = _changed(expert.method, config.get("params", {}))
        length = f"{config['steps']:,} steps of {config['batch_size']} of {counts['train']:,} {many}"
        settings = f"learning rate {config['learning_rate']:g}, seed {config['seed']}"
        found = f"{rounded(accuracy['base'])} % before, {rounded(accuracy['expert'])} % after"
        validation = f"{counts['validation']:,} validation {many}"
        return f"Recipe: {title}{changed}{how}; {length}, {settings}; {found} on {validation}."
    except (KeyError, TypeError, ValueError):
        return f"Recipe: {title}{how}."


def _changed(method: str, params: Mapping[str, Any]) -> str:
    """Return the parameters of a recipe that are not its defaults, in brackets."""
    row = FINE_TUNING.get(method)
    if row is None:
        return ""
    try:
        usual = params_of(row, {}).model_dump(mode="json")
    except EngineError:
        return ""
    parts = [f"{name} {value}" for name, value in params.items() if value != usual.get(name)]
    return f" ({', '.join(parts)})" if parts else ""


def by_recipe(experts: tuple[Expert, ...]) -> dict[str, dict[str, str]]:
    """Return experts by recipe and task: recipe → task → name, in the manifest's order."""
    found: dict[str, dict[str, str]] = {STANDARD: {}} if any(e.method == STANDARD for e in experts) else {}
    for expert in experts:
        found.setdefault(expert.method, {}).setdefault(expert.task, expert.name)
    return found


def complete_recipes(experts: tuple[Expert, ...], tasks: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the recipes that have an expert for each of some tasks, as :func:`by_recipe`; unaligned ones left out."""
    return {
        recipe: {task: names[task] for task in tasks}
        for recipe, names in by_recipe(tuple(one for one in experts if one.aligned or not one.base)).items()
        if all(task in names for task in tasks)
    }
