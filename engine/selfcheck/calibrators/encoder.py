"""The small vision transformer of the references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import open_clip.transformer as vit
from torch import Tensor, nn

from ..reference import by_name


def small_encoder(numbers: Mapping[str, Tensor], facts: Mapping[str, Any], owner: str) -> nn.Module:
    """Return the transformer that a reference describes, with the weights of ``owner``."""
    shape = facts["vit"]
    visual = vit.VisionTransformer(
        shape["image"],
        shape["patch"],
        shape["width"],
        shape["blocks"],
        shape["heads"],
        shape["mlp_ratio"],
        output_dim=shape["embed_dim"],
        act_layer=vit.QuickGELU,
    )
    weights = by_name(numbers, f"{owner}.visual.")
    visual.to(next(iter(weights.values())).dtype).load_state_dict(weights)
    return visual.eval()


def sizes(facts: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of an encoder that deep calibrators need."""
    shape = facts["vit"]
    return {
        "dim": shape["embed_dim"],
        "width": shape["width"],
        "blocks": shape["blocks"],
        "tokens": shape["tokens"],
    }
