"""References of alignment on the small transformer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import functional_call

from ...alignment.symmetry import permuted
from ...alignment.transformer import RESIDUAL, folded, transformer_symmetry, unfolded
from ...alignment.weight_matching import weight_matching
from ..measure import Check, Found
from ..reference import PremergingReference
from .small import own_names, small_encoder, some_images

BLOCKS = range(2)


def _channels(heads: Tensor, inner: Tensor, width: int) -> Tensor:
    """Order of all channels from an order of heads and one inside each head, numbered as before the reordering."""
    return torch.cat([head * width + inner[head] for head in heads.tolist()])


def same_function(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare features of a transformer whose units were reordered by given permutations."""
    want, stated = reference.output(name), reference.entries[name]["params"]
    orders: dict[str, Tensor] = {RESIDUAL: want[RESIDUAL]}
    for block in BLOCKS:
        channels = _channels(want[f"heads_{block}"], want[f"inner_{block}"], stated["head_width"])
        orders |= {f"units_{block}": want[f"units_{block}"]}
        orders |= {f"keys_{block}": channels, f"values_{block}": channels}
    encoder = small_encoder(reference, "expert0", precision)
    own = dict(encoder.named_parameters())
    moved = permuted(unfolded(own), transformer_symmetry(reference.config), orders)
    tensors = folded(moved, own)
    planted = own_names(reference.weights("toyvit_expert0_permuted", precision))
    got = {"features": functional_call(encoder, tensors, (some_images(reference, precision),))}
    stored = {f"planted.{key}": tensor for key, tensor in planted.items()}
    return Found(
        {**got, **{f"planted.{key}": tensors[key] for key in planted}}, {"features": want["features"], **stored}
    )


def planted(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare the orders found for a transformer with planted orders and noise."""
    want, stated = reference.output(name), reference.entries[name]["params"]
    one, two = (
        unfolded(own_names(reference.weights(file, precision)))
        for file in ("toyvit_expert0", "toyvit_expert0_permuted_noisy")
    )
    orders = weight_matching(one, two, transformer_symmetry(reference.config))
    got: dict[str, Tensor] = {}
    width = len(orders["keys_0"]) // stated["num_heads"]
    for key in want:
        got[key] = _official(key, orders, width)
    return Found(got, want)


def _official(key: str, orders: Mapping[str, Tensor], width: int) -> Tensor:
    """One of our orders by the official program's name for it."""
    block = key[1]
    if key.endswith("_mlp_out"):
        return orders[f"units_{block}"]
    if "_attn_QK" not in key:
        return orders[RESIDUAL]
    channels = orders[f"values_{block}"].view(-1, width)
    if not torch.equal(channels, orders[f"keys_{block}"].view(-1, width)):
        raise ValueError("queries and values are ordered differently")
    return channels[int(key[-1])] % width if "P_head" in key else channels[:, 0] // width


CHECKS: dict[str, Check] = {"vit_permutation_function": same_function, "vit_weight_matching": planted}
