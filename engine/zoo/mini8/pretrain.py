"""Pretrain the base by caption classification: match every image with the prompts of all classes of all tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from open_clip.model import CLIP
from torch import Tensor
from torch.nn import functional

from ..encoders.training import descend, scheduled
from .captions import caption_targets
from .edition import Edition, PretrainConfig
from .images import Split
from .model import new_model, prepare
from .tasks import TEMPLATES

Progress = Callable[[str], None]


def training_set(edition: Edition, splits: Mapping[str, Split], config: PretrainConfig) -> tuple[Tensor, Tensor]:
    """Return all images, uint8 (n, 32, 32, 3), and their caption probabilities over all names, float32 (n, names)."""
    images, targets, first = [], [], 0
    for task in edition.captioned:
        split = splits[task.name]
        wide = np.zeros((len(split.labels), len(edition.class_names)), dtype=np.float32)
        noise = config.noise_in if task.in_domain else config.noise_out
        wide[:, first : first + len(task.classes)] = caption_targets(edition, task, split, noise, config.seed)
        first += len(task.classes)
        images.append(torch.from_numpy(split.images))
        targets.append(torch.from_numpy(wide))
    return torch.cat(images), torch.cat(targets)


def shifted(images: Tensor, rng: np.random.Generator, pixels: int) -> Tensor:
    """Move a batch (n, 3, side, side) by up to `pixels` in both directions; the border is repeated."""
    side = images.shape[-1]
    padded = functional.pad(images, (pixels,) * 4, mode="replicate")
    top, left = rng.integers(0, 2 * pixels + 1, 2).tolist()
    return padded[:, :, top : top + side, left : left + side]


def _optimizer(model: CLIP, config: PretrainConfig) -> torch.optim.AdamW:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.98), fused=True)


def _batches(count: int, config: PretrainConfig, rng: np.random.Generator) -> Iterator[Tensor]:
    """Return image numbers of one epoch's full batches, in random order."""
    order = torch.from_numpy(rng.permutation(count))
    for first in range(0, count - config.batch + 1, config.batch):
        yield order[first : first + config.batch]


def pretrain(edition: Edition, splits: Mapping[str, Split], config: PretrainConfig, progress: Progress) -> CLIP:
    """Train a new model on the tasks' `pretrain` splits."""
    images, targets = training_set(edition, splits, config)
    rng = np.random.default_rng([config.seed, 3])
    model = new_model(edition, config.seed).train()
    optimizer = _optimizer(model, config)
    prompts = [
        edition.vocabulary.encode([template.format(name) for name in edition.class_names]) for template in TEMPLATES
    ]
    steps, step, started = config.epochs * (len(images) // config.batch), 0, time.monotonic()
    for epoch in range(config.epochs):
        total = 0.0
        for chosen in _batches(len(images), config, rng):
            batch = shifted(prepare(images[chosen].numpy()), rng, config.shift)
            image_features = functional.normalize(model.visual(batch), dim=-1)
            text_features = functional.normalize(model.encode_text(prompts[rng.integers(len(prompts))]), dim=-1)
            scale = model.logit_scale.exp().clamp(max=config.highest_scale)
            loss = functional.cross_entropy(scale * image_features @ text_features.T, targets[chosen])
            descend(optimizer, loss, scheduled(config.learning_rate, step, steps, config.warmup))
            total += loss.item()
            step += 1
        seconds = time.monotonic() - started
        mean = total / (len(images) // config.batch)
        progress(f"pretraining: epoch {epoch + 1} of {config.epochs}, loss {mean:.3f}, {seconds:.0f} s")
    return model.eval()
