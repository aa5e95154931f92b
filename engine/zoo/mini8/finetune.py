"""Fine-tune visual towers on frozen zero-shot heads: one expert a task, and one model on all tasks together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from open_clip.model import CLIP
from torch import Tensor
from torch.nn import functional

from .images import Split
from .model import prepare, visual_of, visual_state
from .pretrain import descend, scheduled, shifted


@dataclass(frozen=True)
class FinetuneConfig:
    """Settings of fine-tuning; `seed` orders the batches and their shifts."""

    seed: int = 1
    steps: int = 250
    batch: int = 64
    learning_rate: float = 5e-4
    warmup: int = 20
    shift: int = 2


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
    visual = visual_of(base).train()
    scale = base.logit_scale.detach().exp()
    optimizer = torch.optim.AdamW(visual.parameters(), lr=config.learning_rate, weight_decay=0.0, fused=True)
    images = {task: prepare(split.images) for task, split in splits.items()}
    labels = {task: torch.from_numpy(split.labels) for task, split in splits.items()}
    share = config.batch // len(splits)
    for step in range(config.steps):
        chosen = {task: torch.from_numpy(rng.integers(0, len(labels[task]), share)) for task in splits}
        batch = torch.cat([images[task][rows] for task, rows in chosen.items()])
        features = functional.normalize(visual(shifted(batch, rng, config.shift)), dim=-1).split(share)
        losses = [
            functional.cross_entropy(scale * part @ heads[task].T, labels[task][chosen[task]])
            for task, part in zip(splits, features, strict=True)
        ]
        rate = scheduled(config.learning_rate, step, config.steps, config.warmup)
        descend(optimizer, torch.stack(losses).mean(), rate)
    return visual_state(visual.eval())
