"""Shapes layer scores and masks (computed where task vectors are) into the report's salience part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import MergeError

MEGABYTE = 2**20


def salience_part(
    layers: Sequence[str],
    parameters: Sequence[int],
    score: Mapping[str, Sequence[float]],
    mask: Mapping[str, Sequence[bool]],
    shared_mask: Sequence[bool],
    eta: float,
    applied: bool,
    bytes_per_parameter: int = 4,
) -> dict[str, Any]:
    """Return the salience of every expert's layers, and the cost of keeping them.

    Args:
        layers: names, in canonical order.
        parameters: parameters of each layer.
        score: expert → salience of each layer (LwPTV Eq. 5).
        mask: expert → whether the layer is kept at η.
        shared_mask: layers that are kept in the merged task vector.
        eta: pruning ratio η, the share of layers that is dropped per expert.
        applied: whether the recipe pruned with this mask.
        bytes_per_parameter: of the stored weights.

    Returns:
        ``layers``, ``parameters``, ``score``, ``eta``, ``mask``, ``shared_mask``, ``applied``, ``kept_layers``,
        ``kept_parameters_percent`` (of all parameters) and ``kept_megabytes`` (2²⁰ bytes).

    Raises:
        MergeError: something does not have one entry per layer.

    Source: LwPTV, arXiv:2506.09093, §4.
    """
    per_layer = {"parameters": parameters, "shared mask": shared_mask}
    per_layer |= {f"score of '{name}'": values for name, values in score.items()}
    per_layer |= {f"mask of '{name}'": values for name, values in mask.items()}
    for what, values in per_layer.items():
        if len(values) != len(layers):
            raise MergeError(f"The {what} has {len(values)} entries for {len(layers)} layers; one each is needed.")
    kept = sum(count for count, keep in zip(parameters, shared_mask, strict=True) if keep)
    total = sum(parameters)
    return {
        "layers": [str(name) for name in layers],
        "parameters": [int(count) for count in parameters],
        "score": {name: [float(value) for value in values] for name, values in score.items()},
        "eta": float(eta),
        "mask": {name: [bool(value) for value in values] for name, values in mask.items()},
        "shared_mask": [bool(value) for value in shared_mask],
        "applied": applied,
        "kept_layers": sum(bool(value) for value in shared_mask),
        "kept_parameters_percent": 100.0 * int(kept) / int(total) if total else 0.0,
        "kept_megabytes": int(kept) * bytes_per_parameter / MEGABYTE,
    }
