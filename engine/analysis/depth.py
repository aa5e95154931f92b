"""Representation bias through depth: how far a state's block outputs are from the expert's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .bias import cka, l1

MEASURES = {"l1": l1, "cka": cka}


def bias_by_block(state: Mapping[str, np.ndarray], expert: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the L1 distance and linear CKA after every block, and of the features.

    Args:
        state: ``class`` and ``mean`` of shape (blocks, n, width) and ``features`` (n, dim), un-normalised.
        expert: the same of the task's expert, for the same images in the same order.

    Returns:
        ``class`` and ``mean``: measure → one value a block, None where undefined; ``features``: measure → value.

    Raises:
        UnpairedFeatures: images differ in number.
    """
    found: dict[str, Any] = {}
    for name in ("class", "mean"):
        pairs = list(zip(state[name], expert[name], strict=True))
        found[name] = {
            measure: [_or_none(function(*pair)) if np.isfinite(pair[0]).all() else None for pair in pairs]
            for measure, function in MEASURES.items()
        }
    found["features"] = {
        measure: _or_none(function(state["features"], expert["features"])) for measure, function in MEASURES.items()
    }
    return found


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
