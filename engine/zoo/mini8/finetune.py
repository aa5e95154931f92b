"""Fine-tune visual towers on frozen zero-shot heads: one expert a task, and one model on all tasks together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from open_clip.model import CLIP
from torch import Tensor

from ..encoders.training import Schedule, Trainer
from .edition import FinetuneConfig
from .images import Split
from .model import prepare, visual_of, visual_state
from .pretrain import shifted


def finetune(
    base: CLIP, splits: Mapping[str, Split], heads: Mapping[str, Tensor], config: FinetuneConfig
) -> dict[str, Tensor]:
    """Train the visual tower on one or more labelled tasks with clean labels.

    Args:
        base: the model to start from; it is not changed.
        splits: training images and labels by task; a batch takes the same number from each.
        heads: frozen heads (classes, dim) by task.
        config: the settings.

    Returns:
        The trained tower's `visual.*` tensors.
    """
    rng = np.random.default_rng(config.seed)
    schedule = Schedule(config.steps, config.learning_rate, config.warmup)
    scale = base.logit_scale.detach().exp()
    trainer = Trainer(visual_of(base), [heads[task] for task in splits], scale, schedule)
    images = {task: prepare(split.images) for task, split in splits.items()}
    labels = {task: torch.from_numpy(split.labels) for task, split in splits.items()}
    share = config.batch // len(splits)
    for _ in range(config.steps):
        chosen = {task: torch.from_numpy(rng.integers(0, len(labels[task]), share)) for task in splits}
        batch = torch.cat([images[task][rows] for task, rows in chosen.items()])
        trainer.advance(shifted(batch, rng, config.shift), [labels[task][rows] for task, rows in chosen.items()])
    return visual_state(trainer.encoder.eval())
