"""Cross-task linearity: whether merging weights is like combining the experts' activations, block by block."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from ..errors import DataError
from .bias import cosine

Stations = Float[np.ndarray, "blocks n width"]


def combined(base: Stations, experts: Mapping[str, Stations], coefficients: Mapping[str, float]) -> Stations:
    """Return (1 − Σ a_t) f(θ₀) + Σ a_t f(θ_t), the activations of θ₀ + Σ a_t τ_t if weights acted linearly.

    Args:
        base: the pretrained model's activations.
        experts: each expert's, on the same images.
        coefficients: a_t by expert; 1/T each gives the plain mean of the experts.

    Raises:
        DataError: an expert without activations.

    Source: Zhou et al., ICML 2024, arXiv:2402.03660, Definition of cross-task linearity, there for two experts and
        coefficients that add up to one.
    """
    missing = [name for name in coefficients if name not in experts]
    if missing or not coefficients:
        raise DataError(f"Activations of {', '.join(missing) or 'every expert'} are missing; each expert's are needed.")
    found = (1.0 - math.fsum(coefficients.values())) * base.astype(np.float64)
    for name, weight in coefficients.items():
        found += weight * experts[name]
    return found


def likeness(state: Stations, target: Stations, origin: Stations | None = None) -> list[float | None]:
    """Return the mean cosine after every block, from −1 to 1; 1 where the activations point the same way.

    Args:
        state: activations of one model.
        target: what they are compared with.
        origin: subtracted from both, so that the changes against it are compared; None where they are not finite or
            nothing changes.

    Raises:
        UnpairedFeatures: images differ in number.
    """
    found: list[float | None] = []
    for block in range(len(target)):
        pair = [part[block] if origin is None else part[block] - origin[block] for part in (state, target)]
        usable = all(np.isfinite(part).all() for part in pair) and np.any(pair[0]) and np.any(pair[1])
        found.append(1.0 - cosine(*pair) if usable else None)
    return found
