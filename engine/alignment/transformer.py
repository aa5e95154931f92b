"""Transformers: their symmetries, and their weights in a form that has an axis for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import AlignmentError
from ..layouts import Layout
from ..types import Tensors
from ..zoo.modalities import of_config
from .symmetry import Axis, Heads, Symmetry

RESIDUAL = "residual"
THIRDS = ("q", "k", "v")


def unfolded(tensors: Tensors) -> dict[str, Tensor]:
    """Split every ``in_proj`` tensor into the parts of queries, keys and values."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stem, inner, kind = name.rpartition("in_proj_")
        if inner:
            found |= {f"{stem}{part}.{kind}": third for part, third in zip(THIRDS, tensor.chunk(3), strict=True)}
        else:
            found[name] = tensor
    return found


def folded(tensors: Tensors, like: Tensors) -> dict[str, Tensor]:
    """Undo :func:`unfolded`, with the names and the order of ``like``."""
    found = {}
    for name in like:
        stem, inner, kind = name.rpartition("in_proj_")
        found[name] = torch.cat([tensors[f"{stem}{part}.{kind}"] for part in THIRDS]) if inner else tensors[name]
    return found


def transformer_symmetry(config: Mapping[str, Any], prefix: str = "") -> Symmetry:
    """Return the symmetry of a transformer, for weights that are :func:`unfolded`.

    One order of the residual stream runs through the whole network; every block adds the order of its hidden units
    (``units_0`` …), of its heads, and inside heads one of queries and keys (``keys_0`` …) and one of values
    (``values_0`` …). Pixels, words and the output embedding do not move. Where features are the stream itself, as
    RoBERTa's and DistilBERT's are, they move along, and so has the head that reads them. What an architecture may
    leave out or add, such as its first norm or scales of its branches, counts where it is there.

    Args:
        config: of the architecture, as open_clip or transformers write it.
        prefix: of the tensors' names.

    Source: Rinaldi et al., ICML 2025, arXiv:2505.22697, §3; Verma & Elbayad, 2024, arXiv:2403.00986.
        Departure: the former gives every block an order of the residual stream of its own and stores shortcuts as
        matrices, which is another architecture.

    Raises:
        AlignmentError: the architecture is no plain transformer, or has tensors that no symmetry is known of.
        ZooError: the config cannot be built.
    """
    modality = of_config(config)
    layout, blocks = modality.layout_of(config), modality.shape(config)["blocks"]
    if not isinstance(blocks, int) or "norm" not in layout.parts:
        raise AlignmentError(
            "Alignment knows the symmetries of plain vision transformers, BERT, RoBERTa and DistilBERT; this "
            "architecture is none of them."
        )
    there = unfolded(dict(modality.outline(config).named_parameters()))
    residual = [(f"{prefix}{name}", axis) for name, axis in layout.stream if name in there]
    groups: dict[str, tuple[Axis, ...]] = {}
    heads = []
    for number in range(blocks):
        block = f"{prefix}{layout.blocks}{number}."
        residual += [(block + name, axis) for name, axis in _streaming(layout)]
        residual += [(block + name, 0) for name in layout.scales if f"{layout.blocks}{number}.{name}" in there]
        groups[f"units_{number}"] = (*_rows(block, layout, "fc"), (block + _stem(layout, "proj") + ".weight", 1))
        groups[f"keys_{number}"] = (*_rows(block, layout, "q"), *_rows(block, layout, "k"))
        groups[f"values_{number}"] = (*_rows(block, layout, "v"), (block + _stem(layout, "out") + ".weight", 1))
        heads.append(Heads((f"keys_{number}", f"values_{number}"), modality.head_width(config)))
    found = Symmetry({RESIDUAL: tuple(residual), **groups}, tuple(heads), RESIDUAL if layout.streamed else "")
    known = {name.removeprefix(prefix) for axes in found.groups.values() for name, _ in axes}
    odd = [name for name in there if name not in known and not name.startswith(layout.read_out)]
    if odd:
        raise AlignmentError(
            f"Alignment knows the symmetries of plain transformers; this one has {odd[0]} besides, which no symmetry "
            "is known of. Choose experts of another architecture, or merge experts of one base."
        )
    return found


def matrix_names(layout: Layout, part: str, blocks: int) -> list[str]:
    """Return the names of one linear layer of every block, without ``.weight``, such as ``fc`` of the perceptron."""
    return [f"{layout.blocks}{number}.{layout.matrix(part).name.removesuffix('.weight')}" for number in range(blocks)]


def _stem(layout: Layout, part: str) -> str:
    """Return the name of a matrix in its unfolded block, without ``.weight``."""
    name, third = layout.matrix(part)
    return name.removesuffix(".weight") if third is None else f"{name.rpartition('in_proj_')[0]}{part}"


def _rows(block: str, layout: Layout, part: str) -> tuple[Axis, Axis]:
    """Return the axes of what a matrix writes: its rows and its biases."""
    stem = block + _stem(layout, part)
    return (f"{stem}.weight", 0), (f"{stem}.bias", 0)


def _streaming(layout: Layout) -> list[Axis]:
    """Return the axes of a block that the residual stream runs along: norms, readers and writers."""
    norms = [(f"{name}{kind}", 0) for name in layout.parts["norm"] for kind in ("weight", "bias")]
    readers = [(f"{_stem(layout, part)}.weight", 1) for part in ("q", "k", "v")]
    return [
        *norms,
        *readers,
        *_rows("", layout, "out"),
        (f"{_stem(layout, 'fc')}.weight", 1),
        *_rows("", layout, "proj"),
    ]
