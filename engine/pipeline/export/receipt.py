"""The receipt of a merge, kept in the header of the merged file: the recipe, and the digests of what went in."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from ...recipe import Recipe
from ...zoo.folder import Zoo
from .card import Origin

RECIPE, ORIGINS = "recipe", "origins"  # in the header


def origins_of(recipe: Recipe) -> list[Origin]:
    """Return base and experts of a recipe's zoo, with the digests of their files."""
    zoo = Zoo.open(recipe.zoo)
    found = [Origin("base", zoo.manifest.backbone.architecture, "", _digest(zoo.weights_path("base")), "", "")]
    for name, _ in zoo.choose(recipe):
        row = zoo.manifest.expert_table[name]
        found.append(Origin("expert", name, row.task, _digest(zoo.weights_path(name)), row.source, row.licence))
    return found


def receipt(recipe: Recipe) -> dict[str, str]:
    """Return what a merged file's header says of its making: the recipe, and the digests of what went in."""
    return {RECIPE: recipe.to_yaml(), ORIGINS: json.dumps([asdict(origin) for origin in origins_of(recipe)])}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
