"""Sizes of a zoo that experiments are scaled to: feature width, token width, blocks, experts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import RecipeError
from ..manifest import locate_zoo, read_manifest
from ..zoo.making.records import by_recipe
from ..zoo.modalities import modality_of

SIZE = re.compile(r"^(?P<times>\d*)(?P<name>d|w|blocks)(?:/(?P<parts>[1-9]\d*|blocks)|-(?P<less>\d+))?$")
IN_TEXT = re.compile(r"\{(\d*(?:d|w|blocks)(?:/(?:[1-9]\d*|blocks)|-\d+)?)\}")
GROUP = "{each}"  # in a list of experts: those of the group whose turn it is


@dataclass(frozen=True)
class Shape:
    """A zoo as experiments see it."""

    sizes: Mapping[str, int]  # d: dimensions of a feature; w: of a token; blocks
    experts: tuple[str, ...]  # one a task: the standard recipe's where there is one


def shape_of(zoo: str) -> Shape:
    """Read the sizes of a zoo from its manifest and its encoder's config.

    Args:
        zoo: a bundled zoo's name or a path.

    Raises:
        EngineError: there is no such zoo, or it cannot be read.
    """
    folder = locate_zoo(zoo)
    manifest = read_manifest(folder)
    modality = modality_of(manifest)
    found = modality.shape(modality.architecture(folder, manifest))
    sizes = {name: value for name, value in found.items() if isinstance(value, int)}
    recipes = by_recipe(manifest.experts).values()  # the standard one first
    chosen = {task: name for experts in reversed(recipes) for task, name in experts.items()}
    return Shape(sizes, tuple(expert.name for expert in manifest.experts if chosen[expert.task] == expert.name))


def size(text: str, sizes: Mapping[str, int]) -> int:
    """Return a size written as ``d``, ``3d/8``, ``w/blocks`` or ``blocks-1``, at least 1 of a quotient.

    Raises:
        RecipeError: the zoo's encoder has no such size.
    """
    parts = SIZE.match(text)
    for name in (parts["name"], "blocks" if parts["parts"] == "blocks" else parts["name"]):
        if name not in sizes:
            known = {"d": "feature width", "w": "token width", "blocks": "blocks"}[name]
            raise RecipeError(f"The size '{text}' is not known: this zoo's encoder states no {known}.")
    whole = sizes[parts["name"]] * int(parts["times"] or 1)
    if parts["less"]:
        return whole - int(parts["less"])
    if parts["parts"]:
        return max(whole // (sizes["blocks"] if parts["parts"] == "blocks" else int(parts["parts"])), 1)
    return whole


def scaled(value: Any, sizes: Mapping[str, int]) -> Any:
    """Return parts of a recipe with every size written as a number.

    Raises:
        RecipeError: see :func:`size`.
    """
    if isinstance(value, Mapping):
        return {key: scaled(entry, sizes) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [scaled(entry, sizes) for entry in value]
    return size(value, sizes) if isinstance(value, str) and SIZE.match(value) else value


def worded(text: str, sizes: Mapping[str, int]) -> str:
    """Return a text with the sizes that it names in braces, such as ``{d/8}``; left as it is where they are unknown."""

    def number(match: re.Match[str]) -> str:
        try:
            return str(size(match.group(1), sizes))
        except RecipeError:
            return match.group(1)

    return IN_TEXT.sub(number, text)


def names_group(experts: Any) -> bool:
    """Return whether a recipe's list of experts has a place for a group."""
    entries = experts if isinstance(experts, list | tuple) else ()
    return any(GROUP in str(_name_of(entry)) for entry in entries)


def with_group(experts: Any, group: Sequence[str]) -> Any:
    """Return a recipe's list of experts with those of a group in the place of ``{each}``.

    ``{each}-saft`` stands for the experts of the same tasks by another recipe of fine-tuning.
    """
    if not isinstance(experts, list | tuple):
        return experts
    found: list[Any] = []
    for entry in experts:
        name = str(_name_of(entry))
        if GROUP not in name:
            found.append(entry)
            continue
        names = [name.replace(GROUP, one) for one in group]
        found += [{**entry, "name": one} for one in names] if isinstance(entry, Mapping) else names
    return found


def _name_of(entry: Any) -> Any:
    return entry.get("name") if isinstance(entry, Mapping) else entry
