"""Occlusion of texts: the same sentence with each of its words hidden in turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .words import CLS, MASK, PAD, SEP, UNK, places_of


def occluded(row: Tensor, special: Sequence[int] | None = None) -> tuple[np.ndarray, Tensor]:
    """Hide each word of a text in turn.

    Args:
        row: ids and segments, int64 (2, length).
        special: ids that pad, begin, separate, mask and stand for unknown words; those of whole words by default.

    Returns:
        The columns (k,) of the words, and as many texts (k, 2, length) in which one of them is the mask's token.

    Source: Zeiler & Fergus, ECCV 2014, arXiv:1311.2901, §4.2; of words Li et al., 2016, arXiv:1612.08220, with the
        mask's token in place of an erased embedding.
    """
    special = (PAD, CLS, SEP, MASK, UNK) if special is None else special
    places = places_of(row[0].numpy(), special)
    hidden = row.repeat(len(places), 1, 1)
    hidden[torch.arange(len(places)), 0, torch.from_numpy(places)] = special[3] if special[3] >= 0 else special[4]
    return places, hidden
