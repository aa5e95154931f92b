"""Fine-tune the encoder on frozen heads: one expert a task, and one model on all tasks together."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..encoders.training import Schedule, Trainer
from ..texts.bert import Bert
from ..texts.words import Words
from .model import SCALE, State, prepare, state_of, trimmed
from .sentences import Split


@dataclass(frozen=True)
class FinetuneConfig:
    """Settings of fine-tuning; `seed` orders the batches."""

    seed: int = 1
    steps: int = 400
    batch: int = 64
    learning_rate: float = 1e-3
    warmup: int = 20


def finetune(
    base: Bert, splits: Mapping[str, Split], words: Words, heads: Mapping[str, Tensor], config: FinetuneConfig
) -> State:
    """Train all weights of the encoder on one or more labelled tasks with clean labels.

    Args:
        base: the model to start from; it is not changed.
        splits: training sentences by task; a batch takes the same number from each.
        words: the vocabulary.
        heads: frozen heads (classes, dim) by task.
        config: the settings.

    Returns:
        The trained `bert.*` tensors.
    """
    chance = np.random.default_rng(config.seed)
    model = copy.deepcopy(base)
    schedule = Schedule(config.steps, config.learning_rate, config.warmup)
    trainer = Trainer(model, [heads[task] for task in splits], SCALE, schedule)
    samples = {task: prepare(split, words) for task, split in splits.items()}
    labels = {task: torch.from_numpy(split.labels) for task, split in splits.items()}
    share = config.batch // len(splits)
    for _ in range(config.steps):
        chosen = {task: torch.from_numpy(chance.integers(0, len(labels[task]), share)) for task in splits}
        batch = torch.cat([samples[task][rows] for task, rows in chosen.items()])
        trainer.advance(trimmed(batch), [labels[task][rows] for task, rows in chosen.items()])
    return state_of(model.eval())
