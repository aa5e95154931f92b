"""Layers of an image encoder in order of depth, by component, under short names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_BLOCK = re.compile(r"(?:resblocks|blocks|layers)\.(\d+)\.(.+)$")
_STEM = ("class_embedding", "positional_embedding", "conv1", "patch_embed", "cls_token", "pos_embed", "ln_pre")
COMPONENTS = ("Attention", "MLP", "Norm", "Embedding", "Projection", "Other")


@dataclass(frozen=True)
class Layer:
    """One parameter tensor; ``column`` is its place in the report."""

    column: int
    name: str
    short: str
    component: str
    depth: int  # 0: before the blocks, b + 1: inside block b, then what comes after them
    block: int | None

    @property
    def group(self) -> str:
        """Return the part of the encoder that it is in."""
        return f"Block {self.block}" if self.block is not None else ("In" if self.depth == 0 else "Out")


def layers_of(names: Sequence[str]) -> list[Layer]:
    """Describe parameter tensors and sort them by depth; inside a block the given order is kept."""
    blocks = [int(found[1]) for name in names if (found := _BLOCK.search(name))]
    last = max(blocks, default=-1) + 2
    return sorted((_layer(column, name, last) for column, name in enumerate(names)), key=lambda layer: layer.depth)


def _layer(column: int, name: str, last: int) -> Layer:
    bare = name.removeprefix("visual.").removeprefix("trunk.")
    found = _BLOCK.search(bare)
    if found:
        block = int(found[1])
        return Layer(column, name, f"{block} {found[2]}", _component(found[2]), block + 1, block)
    return Layer(column, name, bare, _component(bare), 0 if bare.startswith(_STEM) else last, None)


def _component(part: str) -> str:
    for marks, component in (
        (("attn",), "Attention"),
        (("mlp",), "MLP"),
        (("ln_", "norm"), "Norm"),
        (("embed", "conv1", "cls_token"), "Embedding"),
        (("proj", "head"), "Projection"),
    ):
        if any(mark in part for mark in marks):
            return component
    return "Other"
