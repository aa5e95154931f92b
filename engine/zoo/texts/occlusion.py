"""Occlusion of texts: the same sentence with each of its words hidden in turn."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .words import MASK, places_of


def occluded(row: Tensor) -> tuple[np.ndarray, Tensor]:
    """Hide each word of a text in turn.

    Args:
        row: ids and segments, int64 (2, length).

    Returns:
        The columns (k,) of the words, and as many texts (k, 2, length) in which one of them is the mask's token.

    Source: Zeiler & Fergus, ECCV 2014, arXiv:1311.2901, §4.2; of words Li et al., 2016, arXiv:1612.08220, with the
        mask's token in place of an erased embedding.
    """
    places = places_of(row[0].numpy())
    hidden = row.repeat(len(places), 1, 1)
    hidden[torch.arange(len(places)), 0, torch.from_numpy(places)] = MASK
    return places, hidden
