"""Drawn domain shifts: texts as another hand would have written them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from .words import CLS, MASK, PAD, SEP, UNK, places_of

SHARE = 0.15  # of a text's words that are drawn


OWN = (PAD, CLS, SEP, MASK, UNK)


def typos(ids: np.ndarray, words: np.ndarray, chance: np.random.Generator, special: Sequence[int]) -> np.ndarray:
    """Misspell words, which the vocabulary no longer knows; one that spells everything gets its mask in their place."""
    ids[0, _drawn(words, chance)] = special[4] if special[4] >= 0 else special[3]
    return ids


def dropped(ids: np.ndarray, words: np.ndarray, chance: np.random.Generator, special: Sequence[int]) -> np.ndarray:
    """Leave words out."""
    kept = np.setdiff1d(np.arange(ids.shape[1]), _drawn(words, chance))
    found = np.stack([np.full_like(ids[0], special[0]), np.zeros_like(ids[1])])
    found[:, : len(kept)] = ids[:, kept]
    return found


def swapped(ids: np.ndarray, words: np.ndarray, chance: np.random.Generator, special: Sequence[int]) -> np.ndarray:
    """Swap words with the next one; the last word has none, and a text of which no other is drawn stays as it is."""
    for place in _drawn(words, chance):
        if place + 1 in words:
            ids[0, [place, place + 1]] = ids[0, [place + 1, place]]
    return ids


SHIFTS: Mapping[str, Callable[[np.ndarray, np.ndarray, np.random.Generator, Sequence[int]], np.ndarray]] = {
    "typos": typos,
    "dropped": dropped,
    "swapped": swapped,
}


def shift(samples: Tensor, kind: str, task: str, seed: int, special: Sequence[int] | None = None) -> Tensor:
    """Shift every text of a task.

    Args:
        samples: ids and segments, int64 (n, 2, length).
        kind: one of ``SHIFTS``.
        task: chance depends on it, on the kind and on the seed only.
        seed: the split's.
        special: ids that pad, begin, separate, mask and stand for unknown words; those of whole words by default.

    Returns:
        int64 of the same shape; at least one word of each text is drawn where it has several, and changed but for one
        that has no next to be swapped with.

    Source: Belinkov & Bisk, ICLR 2018, arXiv:1711.02173 (misspelt and reordered text; by words, not letters).
    """
    chance = np.random.default_rng(zlib.crc32(f"{task}/{kind}/{seed}".encode()))
    rows, special = samples.numpy().copy(), OWN if special is None else special
    for number, row in enumerate(rows):
        words = places_of(row[0], special)
        if len(words) > 1:
            rows[number] = SHIFTS[kind](row.copy(), words, chance, special)
    return torch.from_numpy(rows)


def _drawn(words: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    return np.sort(chance.choice(words, max(1, round(SHARE * len(words))), replace=False))
