"""Vision transformers of open_clip: their symmetries, and their weights in a form that has an axis for each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import AlignmentError
from ..types import Tensors
from .symmetry import Heads, Symmetry

BLOCK = re.compile(r"transformer\.resblocks\.(\d+)\.")
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
    """Return the symmetry of an open_clip vision transformer, for weights that are :func:`unfolded`.

    One order of the residual stream runs through the whole network; every block adds the order of its hidden units
    (``units_0`` …), of its heads, and inside heads one of queries and keys (``keys_0`` …) and one of values
    (``values_0`` …). Pixels, the output embedding and heads of tasks do not move.

    Args:
        config: of the architecture, as open_clip writes it.
        prefix: of the tensors' names.

    Source: Rinaldi et al., ICML 2025, arXiv:2505.22697, §3; Verma & Elbayad, 2024, arXiv:2403.00986.
        Departure: the former gives every block an order of the residual stream of its own and stores shortcuts as
        matrices, which is another architecture.

    Raises:
        AlignmentError: the architecture is no plain vision transformer.
    """
    vision = config["vision_cfg"]
    if not isinstance(vision.get("layers"), int) or not isinstance(vision.get("patch_size"), int):
        raise AlignmentError("Alignment knows the symmetries of plain vision transformers; this architecture is none.")
    residual = [(f"{prefix}{name}", axis) for name, axis in STEM]
    groups: dict[str, tuple[tuple[str, int], ...]] = {}
    heads = []
    for number in range(vision["layers"]):
        block = f"{prefix}transformer.resblocks.{number}."
        residual += [(block + name, axis) for name, axis in READERS_AND_WRITERS]
        groups[f"units_{number}"] = tuple((block + name, axis) for name, axis in UNITS)
        groups[f"keys_{number}"] = tuple((block + name, axis) for name, axis in KEYS)
        groups[f"values_{number}"] = tuple((block + name, axis) for name, axis in VALUES)
        heads.append(Heads((f"keys_{number}", f"values_{number}"), vision.get("head_width", 64)))
    return Symmetry({RESIDUAL: tuple(residual), **groups}, tuple(heads))


STEM = (
    ("conv1.weight", 0),
    ("class_embedding", 0),
    ("positional_embedding", 1),
    ("ln_pre.weight", 0),
    ("ln_pre.bias", 0),
    ("ln_post.weight", 0),
    ("ln_post.bias", 0),
    ("proj", 0),
)
READERS_AND_WRITERS = (
    ("ln_1.weight", 0),
    ("ln_1.bias", 0),
    ("ln_2.weight", 0),
    ("ln_2.bias", 0),
    ("attn.q.weight", 1),
    ("attn.k.weight", 1),
    ("attn.v.weight", 1),
    ("attn.out_proj.weight", 0),
    ("attn.out_proj.bias", 0),
    ("mlp.c_fc.weight", 1),
    ("mlp.c_proj.weight", 0),
    ("mlp.c_proj.bias", 0),
)
UNITS = (("mlp.c_fc.weight", 0), ("mlp.c_fc.bias", 0), ("mlp.c_proj.weight", 1))
KEYS = (("attn.q.weight", 0), ("attn.q.bias", 0), ("attn.k.weight", 0), ("attn.k.bias", 0))
VALUES = (("attn.v.weight", 0), ("attn.v.bias", 0), ("attn.out_proj.weight", 1))
