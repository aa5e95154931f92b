"""The small CLIP model, and the classification heads that its text tower gives."""

from __future__ import annotations

import copy
from collections.abc import Collection

import numpy as np
import torch
from open_clip.model import CLIP
from torch import Tensor
from torch.nn import functional

from .edition import Edition
from .tasks import TEMPLATES

MEAN, DEVIATION = 0.5, 0.27
PREPROCESS = {
    "size": 32,
    "mean": [MEAN] * 3,
    "std": [DEVIATION] * 3,
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}
VISUAL_PREFIX = "visual."


def new_model(edition: Edition, seed: int) -> CLIP:
    """Return a randomly initialised model."""
    torch.manual_seed(seed)
    return CLIP(**edition.configuration())


def prepare(images: np.ndarray) -> Tensor:
    """Turn uint8 images (n, 32, 32, 3) into normalised float32 (n, 3, 32, 32)."""
    pixels = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float()
    return (pixels / 255 - MEAN) / DEVIATION


@torch.no_grad()
def text_heads(edition: Edition, model: CLIP, tasks: Collection[str] | None = None) -> dict[str, Tensor]:
    """Build zero-shot heads by task, each (classes, 128): the unit-norm mean over templates of unit-norm embeddings.

    All tasks, or those that are named.
    """
    heads = {}
    for task in edition.tasks:
        if tasks is not None and task.name not in tasks:
            continue
        per_template = [
            functional.normalize(
                model.encode_text(edition.vocabulary.encode([template.format(c) for c in task.classes])), dim=-1
            )
            for template in TEMPLATES
        ]
        heads[task.name] = functional.normalize(torch.stack(per_template).mean(0), dim=-1)
    return heads


@torch.inference_mode()
def encode_images(visual: torch.nn.Module, images: Tensor, batch: int = 250) -> Tensor:
    """Return un-normalised image embeddings (n, 128) of prepared images (n, 3, 32, 32)."""
    visual.eval()
    return torch.cat([visual(part) for part in images.split(batch)])


def accuracy(features: Tensor, head: Tensor, labels: Tensor) -> float:
    """Return the percentage of features (n, dim) whose most similar head row (classes, dim) is the label's (n,)."""
    predictions = (functional.normalize(features, dim=-1) @ head.T).argmax(dim=1)
    return 100.0 * predictions.eq(labels).float().mean().item()


def visual_of(model: CLIP, state: dict[str, Tensor] | None = None) -> torch.nn.Module:
    """Return a copy of the model's visual tower, with the `visual.*` tensors of `state` if given."""
    visual = copy.deepcopy(model.visual)
    if state is not None:
        visual.load_state_dict({name.removeprefix(VISUAL_PREFIX): tensor.float() for name, tensor in state.items()})
    return visual


def visual_state(visual: torch.nn.Module) -> dict[str, Tensor]:
    """Return the tower's tensors under their checkpoint names `visual.*`."""
    return {VISUAL_PREFIX + name: tensor.detach().clone() for name, tensor in visual.state_dict().items()}
