"""The layers that LwPTV keeps. Free of torch, so that a page can move the threshold over a stored salience matrix."""

from __future__ import annotations

import math

import numpy as np


def lwptv_masks(scores: np.ndarray, eta: float, count_frozen: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Threshold salience scores into layer masks.

    Args:
        scores: salience s_k^l of shape (K, L), experts by layers, ≥ 0.
        eta: pruning ratio η in [0, 1]; 0 keeps every layer, 1 prunes every layer.
        count_frozen: layers outside ``scores`` that were never trained (salience 0) and still count in the ratio;
            published numbers count 6 of them.

    Returns:
        The mask of every expert, boolean (K, L), and the shared mask that keeps what any expert keeps, boolean (L,).

    Source: Zhang et al., 2025, arXiv:2506.09093, Eq. (6)–(8) and Algorithm 1.
    Departure: Algorithm 1 would prune the least salient layer at η = 0 and read past the end at η = 1; here these
        are the merge without and with complete pruning. The threshold s_(⌊Lη⌋), counted from 0, is strict as printed,
        so layers tied at it are pruned.
    """
    scores = np.asarray(scores, dtype=np.float64)
    experts, layers = scores.shape
    index = math.floor((layers + count_frozen) * eta + 1e-9)
    if eta <= 0:
        masks = np.ones((experts, layers), dtype=bool)
    elif index >= layers + count_frozen:
        masks = np.zeros((experts, layers), dtype=bool)
    else:
        frozen = np.zeros((experts, count_frozen))
        threshold = np.sort(np.concatenate([scores, frozen], axis=1), axis=1)[:, index]
        masks = scores > threshold[:, None]
    return masks, masks.any(axis=0)
