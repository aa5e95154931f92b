"""Simulated noisy web captions.

The harder an image is, the likelier its caption carries the name of one fixed partner class of the same task. A model
that learns from such captions gets good features and a systematic confusion of names, as a web-trained model does;
undoing that is much of what experts learn and merging recovers.
"""

from __future__ import annotations

import numpy as np

from .edition import CaptionNoise, Edition
from .images import Split
from .tasks import Task


def partners(edition: Edition, task: Task, seed: int) -> np.ndarray:
    """Draw for every class (classes,) the other class whose name its captions may carry: a random cycle."""
    order = np.random.default_rng([seed, edition.index(task), 1]).permutation(len(task.classes))
    partner = np.empty(len(order), dtype=np.int64)
    partner[order] = np.roll(order, 1)
    return partner


def caption_targets(edition: Edition, task: Task, split: Split, noise: CaptionNoise, seed: int) -> np.ndarray:
    """Return the probability of each of the task's names as an image's caption, float32 (images, classes)."""
    classes, rows = len(task.classes), np.arange(len(split.labels))
    rng = np.random.default_rng([seed, edition.index(task), 2])
    offset = rng.uniform(-noise.spread, noise.spread, classes)[split.labels]
    wrong = np.clip(noise.floor + noise.slope * split.hardness + offset, 0.03, 0.9)
    targets = np.repeat((wrong * (1 - noise.partner_share) / classes)[:, None], classes, axis=1)
    targets[rows, split.labels] += 1 - wrong
    targets[rows, partners(edition, task, seed)[split.labels]] += wrong * noise.partner_share
    return targets.astype(np.float32)
