"""Splits of sentences, each of its own random stream, and the labels that a hasty annotator would have given them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from ..texts.words import Words, split_words
from .grammars.common import FILLERS, Chance, some
from .tasks import TASKS, Task

DATA_SEED = 1
MOST_FILLERS = 4  # words around a sentence, whatever its hardness
SIZES = {"pretrain": 3000, "train": 3000, "adapt": 600, "val": 300, "test": 500}


@dataclass(frozen=True)
class Split:
    """Sentences of one task: (text, second part) each, labels, hardness and decoys (−1 where there is none), (n,)."""

    texts: list[tuple[str, str]]
    labels: np.ndarray
    hardness: np.ndarray
    decoys: np.ndarray


@dataclass(frozen=True)
class LabelNoise:
    """Probability of a wrong label: floor + slope · hardness + a class's own offset in ± spread.

    Of wrong labels, ``decoy_share`` name what the words alone suggest, where that is another class; of the others,
    ``partner_share`` name one fixed class, and the rest any class of the task.
    """

    floor: float
    slope: float
    spread: float
    decoy_share: float = 0.5
    partner_share: float = 0.85


def write_task(task: Task, sizes: Mapping[str, int]) -> dict[str, Split]:
    """Write all splits of a task; no sentence comes twice, within a split or in two."""
    seen: set[tuple[str, str]] = set()
    return {split: _write_split(task, split, sizes[split], seen) for split in reversed(SIZES)}


def _write_split(task: Task, split: str, count: int, seen: set[tuple[str, str]]) -> Split:
    """Write one split with balanced labels and uniform hardness."""
    chance = np.random.default_rng([DATA_SEED, TASKS.index(task), list(SIZES).index(split)])
    labels = chance.permutation(np.arange(count) % len(task.classes))
    hardness = chance.random(count)
    texts, decoys = [], np.full(count, -1)
    for row in range(count):
        text, decoy = next(
            found for _ in repeat(None) if (found := _write(task, chance, labels[row], hardness[row]))[0] not in seen
        )
        seen.add(text)
        texts.append(text)
        decoys[row] = -1 if decoy is None else decoy
    return Split(texts, labels, hardness, decoys)


def _write(task: Task, chance: Chance, label: int, hardness: float) -> tuple[tuple[str, str], int | None]:
    """Write a sentence with fillers around it."""
    written = task.write(chance, int(label), float(hardness))
    words = some(chance, FILLERS, int(chance.integers(MOST_FILLERS + 1)))
    before = int(chance.integers(len(words) + 1))
    return (" ".join([*words[:before], written.text, *words[before:]]), written.second), written.decoy


def write_all(sizes: Mapping[str, int] = SIZES) -> dict[str, dict[str, Split]]:
    """Write every split of every task; ``sizes`` are texts a split."""
    return {task.name: write_task(task, sizes) for task in TASKS}


def vocabulary(data: Mapping[str, Mapping[str, Split]]) -> Words:
    """Return the words of all splits, sorted."""
    return Words.of(
        sorted(
            {
                word
                for splits in data.values()
                for split in splits.values()
                for text in split.texts
                for part in text
                for word in split_words(part)
            }
        )
    )


def partners(task: Task, seed: int) -> np.ndarray:
    """Draw for every class (classes,) the other class that it may be called: a random cycle."""
    order = np.random.default_rng([seed, TASKS.index(task), 1]).permutation(len(task.classes))
    partner = np.empty(len(order), dtype=np.int64)
    partner[order] = np.roll(order, 1)
    return partner


def noisy_targets(task: Task, split: Split, noise: LabelNoise, seed: int) -> np.ndarray:
    """Return the probability of each class as a sentence's label, float32 (n, classes)."""
    classes, rows = len(task.classes), np.arange(len(split.labels))
    offset = np.random.default_rng([seed, TASKS.index(task), 2]).uniform(-noise.spread, noise.spread, classes)
    wrong = np.clip(noise.floor + noise.slope * split.hardness + offset[split.labels], 0.02, 0.9)
    misled = wrong * np.where(split.decoys >= 0, noise.decoy_share, 0.0)
    targets = np.repeat(((wrong - misled) * (1 - noise.partner_share) / classes)[:, None], classes, axis=1)
    targets[rows, split.labels] += 1 - wrong
    targets[rows, partners(task, seed)[split.labels]] += (wrong - misled) * noise.partner_share
    targets[rows, np.maximum(split.decoys, 0)] += misled
    return targets.astype(np.float32)
