"""The small CLIP model, its word vocabulary, and the classification heads that its text tower gives."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from open_clip.model import CLIP
from torch import Tensor
from torch.nn import functional

from .tasks import CLASS_NAMES, TASKS, TEMPLATES

MEAN, DEVIATION = 0.5, 0.27
CONTEXT = 12
PREPROCESS = {
    "size": 32,
    "mean": [MEAN] * 3,
    "std": [DEVIATION] * 3,
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}
VISUAL_PREFIX = "visual."


class Vocabulary:
    """Word-level tokens: 0 pads, words count from 1, and the end token is the largest (open_clip pools there)."""

    def __init__(self, texts: Sequence[str]) -> None:
        words = sorted({word for text in texts for word in text.lower().split()})
        self.words = {word: number for number, word in enumerate(words, start=1)}
        self.start, self.end = len(words) + 1, len(words) + 2
        self.size = len(words) + 3

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return token ids of shape (texts, CONTEXT); raises ValueError for a word that was never learned."""
        tokens = torch.zeros(len(texts), CONTEXT, dtype=torch.long)
        for row, text in enumerate(texts):
            words = text.lower().split()
            unknown = [word for word in words if word not in self.words]
            if unknown or len(words) > CONTEXT - 2:
                raise ValueError(f"'{text}' has unknown words {unknown} or more than {CONTEXT - 2} words.")
            ids = [self.start, *(self.words[word] for word in words), self.end]
            tokens[row, : len(ids)] = torch.tensor(ids)
        return tokens

    def as_json(self) -> dict[str, Any]:
        """Return the text of vocabulary.json."""
        special = {"pad": 0, "start": self.start, "end": self.end}
        return {"tokenizer": "lower-case words", "context_length": CONTEXT, "special": special, "words": self.words}


VOCABULARY = Vocabulary([template.format(name) for template in TEMPLATES for name in CLASS_NAMES])


def configuration() -> dict[str, Any]:
    """Return the open_clip model configuration that config.json holds."""
    return {
        "embed_dim": 128,
        "quick_gelu": False,
        "vision_cfg": {
            "image_size": 32,
            "patch_size": 8,
            "width": 192,
            "layers": 4,
            "head_width": 32,
            "mlp_ratio": 3.0,
        },
        "text_cfg": {
            "context_length": CONTEXT,
            "vocab_size": VOCABULARY.size,
            "width": 128,
            "heads": 4,
            "layers": 2,
        },
    }


def new_model(seed: int) -> CLIP:
    """Return a randomly initialised model."""
    torch.manual_seed(seed)
    return CLIP(**copy.deepcopy(configuration()))


def prepare(images: np.ndarray) -> Tensor:
    """Turn uint8 images (n, 32, 32, 3) into normalised float32 (n, 3, 32, 32)."""
    pixels = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float()
    return (pixels / 255 - MEAN) / DEVIATION


@torch.no_grad()
def text_heads(model: CLIP) -> dict[str, Tensor]:
    """Build zero-shot heads by task, each (classes, 128): the unit-norm mean over templates of unit-norm embeddings."""
    heads = {}
    for task in TASKS:
        per_template = [
            functional.normalize(
                model.encode_text(VOCABULARY.encode([template.format(c) for c in task.classes])), dim=-1
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
