"""Which files mergekit's models are, and which expert of a zoo a model of mergekit's is."""

from __future__ import annotations

from ...recipe import Recipe
from ...zoo.folder import Zoo


def model_paths(recipe: Recipe) -> tuple[str, dict[str, str]]:
    """The base's file and the chosen experts' files of a recipe's zoo."""
    zoo = Zoo.open(recipe.zoo)
    experts = {name: str(zoo.weights_path(name)) for name, _ in zoo.choose(recipe)}
    return str(zoo.weights_path("base")), experts


def expert_spellings(zoo: str) -> dict[str, tuple[str, ...]]:
    """A zoo's experts with what a path may call them: their task, their file, where they came from."""
    opened = Zoo.open(zoo)
    found = {}
    for expert in opened.manifest.experts:
        own = (expert.task, expert.weights, str(opened.folder / expert.weights))
        found[expert.name] = tuple(text for text in own if text)
    return found
