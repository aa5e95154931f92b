"""Accuracies of one set of visual towers on the published images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from open_clip.model import CLIP
from torch import Tensor

from .edition import Edition
from .images import Split
from .model import accuracy, encode_images, prepare, text_heads, visual_of

State = dict[str, Tensor]
Scores = dict[str, dict[str, float]]


class LabelledSplit(NamedTuple):
    """Prepared images (n, 3, 32, 32) and labels (n,)."""

    images: Tensor
    labels: Tensor


class Judge:
    """Scores visual towers with the frozen heads of one base."""

    def __init__(self, edition: Edition, base: CLIP, splits: Mapping[str, Split]) -> None:
        self.base, self.heads = base, text_heads(edition, base)
        self.data = {
            task: LabelledSplit(prepare(split.images), torch.from_numpy(split.labels)) for task, split in splits.items()
        }

    def score(self, state: State | None, tasks: tuple[str, ...]) -> dict[str, float]:
        """Return percent correct by task of the base with the `visual.*` tensors of `state` (None: the base itself)."""
        visual = visual_of(self.base, state)
        scores = {}
        for task in tasks:
            features = encode_images(visual, self.data[task].images)
            scores[task] = round(accuracy(features, self.heads[task], self.data[task].labels), 2)
        return scores

    def table(self, experts: Mapping[str, State], others: Mapping[str, State | None]) -> Scores:
        """Return scores of each expert on its own task and of the other models on every task, by model and task."""
        own = {task: self.score(state, (task,))[task] for task, state in experts.items()}
        every = tuple(self.data)
        return {"experts": own, **{name: self.score(state, every) for name, state in others.items()}}


def moved(base: State, experts: Mapping[str, State], scaling: float) -> State:
    """Return the base plus `scaling` times the sum of the experts' task vectors, to check how the zoo merges."""
    return {
        name: tensor.float() + scaling * sum(expert[name].float() - tensor.float() for expert in experts.values())
        for name, tensor in base.items()
    }


def averages(edition: Edition, scores: Scores) -> Scores:
    """Return the mean over in-domain, out-of-domain and shifted tasks, by model."""
    group = {task.name: "in" if task.in_domain else "shifted" if task.shifted_from else "out" for task in edition.tasks}
    means: Scores = {}
    for model, by_task in scores.items():
        found: dict[str, list[float]] = {}
        for task, score in by_task.items():
            found.setdefault(group[task], []).append(score)
        means[model] = {name: round(float(np.mean(values)), 2) for name, values in found.items()}
    return means
