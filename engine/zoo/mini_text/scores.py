"""Accuracies of encoders on written sentences."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ..texts.bert import Bert
from ..texts.words import Words
from .model import State, accuracy, features_of, filled, prepare
from .sentences import Split
from .tasks import IN_DOMAIN, TASKS

Scores = dict[str, dict[str, float]]


class Judge:
    """Scores encoders with the frozen heads of one base."""

    def __init__(self, base: Bert, heads: Mapping[str, Tensor], words: Words, splits: Mapping[str, Split]) -> None:
        self.base, self.heads = base, heads
        self.data = {task: (prepare(split, words), torch.from_numpy(split.labels)) for task, split in splits.items()}

    def score(self, state: State | None, tasks: tuple[str, ...]) -> dict[str, float]:
        """Return percent correct by task of the base with the `bert.*` tensors of `state` (None: the base itself)."""
        model = self.base if state is None else filled(self.base, state)
        return {
            task: round(accuracy(features_of(model, self.data[task][0]), self.heads[task], self.data[task][1]), 2)
            for task in tasks
        }

    def table(self, experts: Mapping[str, State], others: Mapping[str, State | None]) -> Scores:
        """Return scores by model and task: each expert's on its own task, and the mean expert's out of domain."""
        own = {task: self.score(state, (task,))[task] for task, state in experts.items()}
        outside = tuple(task.name for task in TASKS if not task.in_domain)
        away = [self.score(state, outside) for state in experts.values()]
        own |= {task: round(float(np.mean([scores[task] for scores in away])), 2) for task in outside}
        every = tuple(task.name for task in TASKS)
        return {"experts": own, **{name: self.score(state, every) for name, state in others.items()}}


def moved(base: State, experts: Mapping[str, State], scaling: float) -> State:
    """Return the base plus `scaling` times the sum of the experts' task vectors, to check how the zoo merges."""
    return {
        name: tensor.float() + scaling * sum(expert[name].float() - tensor.float() for expert in experts.values())
        for name, tensor in base.items()
    }


def averages(scores: Scores) -> Scores:
    """Return the mean over in-domain and over out-of-domain tasks, by model."""
    inside = {task.name for task in IN_DOMAIN}
    return {
        model: {
            group: round(float(np.mean([score for task, score in by_task.items() if (task in inside) is within])), 2)
            for group, within in (("in", True), ("out", False))
        }
        for model, by_task in scores.items()
    }
