"""Zero-shot heads from CLIP's own text encoder: the mean of a class's normalised prompt embeddings, normalised again.

Source: Radford et al. 2021, arXiv:2103.00020, §3.1.4. Departure: none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import ZooError
from ..manifest import Task
from ..types import Progress, Weights

BATCH = 128
DEFAULT_TEMPLATES = ("a photo of a {}.",)
END = 49407  # the token that closes a text, of CLIP's vocabulary
VOCABULARY = 49408
HEAD_WIDTH = 64


def has_text_side(weights: Weights) -> bool:
    """Whether a checkpoint holds CLIP's text encoder beside the image encoder."""
    return {"token_embedding.weight", "text_projection", "ln_final.weight"} <= set(weights.names)


def prompt_heads(
    config: Mapping[str, Any], weights: Weights, tasks: Sequence[Task], progress: Progress, device: str = "cpu"
) -> dict[str, Tensor]:
    """Build heads from class names and templates.

    Args:
        config: the architecture with its `text_cfg`.
        weights: a checkpoint with CLIP's text side.
        tasks: whose classes and templates are embedded.
        progress: told the share of prompts done.
        device: where to compute.

    Returns:
        One (classes, dim) float32 matrix a task, rows of unit norm.

    Raises:
        ZooError: the architecture's text side reads other tokens than CLIP's, or a tensor is missing.
    """
    encoder = _text_encoder(config, weights).to(device)
    counts = [len(task.classes) * len(task.templates or DEFAULT_TEMPLATES) for task in tasks]
    heads, done = {}, 0
    for task, count in zip(tasks, counts, strict=True):

        def report(fraction: float, message: str = "", done: int = done, count: int = count, task: Task = task) -> None:
            progress((done + fraction * count) / max(sum(counts), 1), f"Head of {task.label}")

        heads[task.name] = _head(encoder, task, device, report)
        done += count
    return heads


@torch.inference_mode()
def _head(encoder: nn.Module, task: Task, device: str, progress: Progress) -> Tensor:
    templates = task.templates or DEFAULT_TEMPLATES
    texts = [template.format(name) for name in task.classes for template in templates]
    rows = []
    for start in range(0, len(texts), BATCH):
        numbers = tokens(texts[start : start + BATCH]).to(device)
        length = numbers.shape[1]
        # The causal mask of this length; the encoder's own was made on the meta device and is stored nowhere.
        encoder.attn_mask = torch.full((length, length), float("-inf"), device=device).triu_(1)
        rows.append(encoder(numbers).float().cpu())
        progress(min(1.0, (start + BATCH) / len(texts)))
    embedded = functional.normalize(torch.cat(rows), dim=-1)
    return functional.normalize(embedded.view(len(task.classes), len(templates), -1).mean(dim=1), dim=-1)


def tokens(texts: Sequence[str]) -> Tensor:
    """Token numbers of texts, cut after the longest: nothing behind a text's end changes its embedding."""
    from open_clip import tokenize

    numbers = tokenize(list(texts))
    longest = int((numbers == END).int().argmax(dim=-1).max()) + 1
    return numbers[:, :longest]


def _text_encoder(config: Mapping[str, Any], weights: Weights) -> nn.Module:
    from open_clip.model import _build_text_tower

    text = config.get("text_cfg") or _recognised(weights)
    if text.get("vocab_size") != VOCABULARY or "hf_model_name" in text or "hf_tokenizer_name" in text:
        raise ZooError(
            "The architecture's text encoder reads other tokens than CLIP's, so no heads can be built from prompts. "
            "Bring heads (`heads:` in zoo.yaml)."
        )
    with torch.device("meta"):
        encoder = _build_text_tower(config["embed_dim"], dict(text), bool(config.get("quick_gelu", False)))
    encoder = encoder.to_empty(device="cpu").eval().requires_grad_(False)
    stored = set(weights.names)
    for name, parameter in encoder.named_parameters():
        if name not in stored or weights.shape(name) != tuple(parameter.shape):
            what = f"has {name} of shape {weights.shape(name)}" if name in stored else f"lacks {name}"
            raise ZooError(f"The base's text side {what}; the architecture's is {tuple(parameter.shape)}.")
        parameter.data.copy_(weights.tensor(name))
    return encoder


def _recognised(weights: Weights) -> dict[str, int]:
    """The text side of a checkpoint whose config says nothing of it; CLIP's heads are 64 wide."""
    vocabulary, width = weights.shape("token_embedding.weight")
    layers = {name.split(".")[2] for name in weights.names if name.startswith("transformer.resblocks.")}
    return {
        "context_length": weights.shape("positional_embedding")[0],
        "vocab_size": vocabulary,
        "width": width,
        "heads": max(1, width // HEAD_WIDTH),
        "layers": len(layers),
    }
