"""Drawn domain shifts: texts as another hand would have written them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from .words import PAD, UNK, places_of

SHARE = 0.15  # of a text's words that are changed


def typos(ids: np.ndarray, words: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """Misspell words, which a vocabulary of whole words no longer knows."""
    ids[0, _drawn(words, chance)] = UNK
    return ids


def dropped(ids: np.ndarray, words: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """Leave words out."""
    kept = np.setdiff1d(np.arange(ids.shape[1]), _drawn(words, chance))
    found = np.full_like(ids, PAD)
    found[:, : len(kept)] = ids[:, kept]
    return found


def swapped(ids: np.ndarray, words: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """Swap words with the next one."""
    for place in _drawn(words, chance):
        if place + 1 in words:
            ids[0, [place, place + 1]] = ids[0, [place + 1, place]]
    return ids


SHIFTS: Mapping[str, Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]] = {
    "typos": typos,
    "dropped": dropped,
    "swapped": swapped,
}


def shift(samples: Tensor, kind: str, task: str, seed: int) -> Tensor:
    """Shift every text of a task.

    Args:
        samples: ids and segments, int64 (n, 2, length).
        kind: one of ``SHIFTS``.
        task: chance depends on it, on the kind and on the seed only.
        seed: the split's.

    Returns:
        int64 of the same shape; at least one word of each text is changed where it has several.

    Source: Belinkov & Bisk, ICLR 2018, arXiv:1711.02173 (misspelt and reordered text; by words, not letters).
    """
    chance = np.random.default_rng(zlib.crc32(f"{task}/{kind}/{seed}".encode()))
    rows = samples.numpy().copy()
    for number, row in enumerate(rows):
        words = places_of(row[0])
        if len(words) > 1:
            rows[number] = SHIFTS[kind](row.copy(), words, chance)
    return torch.from_numpy(rows)


def _drawn(words: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    return np.sort(chance.choice(words, max(1, round(SHARE * len(words))), replace=False))
