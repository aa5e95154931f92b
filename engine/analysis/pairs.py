"""The check that two feature matrices are of the same images."""

# ruff: noqa: F722
from __future__ import annotations

import numpy as np
from jaxtyping import Float

from ..errors import UnpairedFeatures

Features = Float[np.ndarray, "n dim"]


def paired(state: Features, expert: Features) -> tuple[Float[np.ndarray, "n dim"], Float[np.ndarray, "n dim"]]:
    """Return both matrices in float64, once their shapes agree.

    Raises:
        UnpairedFeatures: rows or widths differ, or there are no rows.
    """
    if state.shape != expert.shape:
        raise UnpairedFeatures(
            f"Features of shape {state.shape} cannot be compared with expert features of shape {expert.shape}; "
            "they must be of the same images in the same order."
        )
    if len(state) == 0:
        raise UnpairedFeatures("There are no features to compare: both matrices have 0 rows.")
    return np.asarray(state, dtype=np.float64), np.asarray(expert, dtype=np.float64)
