"""Layers of an encoder in order of depth, by component, under short names.

Wherever people read a block's number it counts from 1: on axes, in short names, in sentences. Names of tensors and the
numbers that somebody types into a recipe (``blocks`` of IntervMerge) count from 0, as the files do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..layouts import STEMS, block_of, component_of, place_of, unwrapped

COMPONENTS = ("Attention", "MLP", "Norm", "Embedding", "Projection", "Other")


@dataclass(frozen=True)
class Layer:
    """One parameter tensor; ``column`` is its place in the report."""

    column: int
    name: str
    short: str
    component: str
    depth: int  # 0: before the blocks, b + 1: inside block b, then what comes after them
    block: int | None  # from 0, as in the tensor's name

    @property
    def group(self) -> str:
        """Return the part of the encoder that it is in."""
        return f"Block {self.block + 1}" if self.block is not None else ("In" if self.depth == 0 else "Out")


def layers_of(names: Sequence[str]) -> list[Layer]:
    """Describe parameter tensors and sort them by depth; inside a block the given order is kept."""
    last = max((block for name in names if (block := block_of(name)) is not None), default=-1) + 2
    return sorted((_layer(column, name, last) for column, name in enumerate(names)), key=lambda layer: layer.depth)


def _layer(column: int, name: str, last: int) -> Layer:
    bare, place = unwrapped(name), place_of(name)
    if place:
        short = f"{place.block + 1} {place.part}"
        return Layer(column, name, short, component_of(place.part), place.block + 1, place.block)
    return Layer(column, name, bare, component_of(bare), 0 if bare.startswith(STEMS) else last, None)
