"""A merged task vector as a LoRA adapter of PEFT: what low rank keeps of it, and what it leaves out."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...errors import EngineError
from ...types import Weights
from ...weights import Memory, write_weights
from ...weights.huggingface import ToHuggingFace

LINEAR = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2", "visual_projection")
PREFIX = "base_model.model."
ENERGY = 0.99  # share of a matrix's squared norm that its rank has to keep


@dataclass(frozen=True)
class Kept:
    """The part of a task vector that an adapter holds; shares are of its norm."""

    ranks: dict[str, int]  # by module
    error: float  # ‖τ − adapter‖ / ‖τ‖ over the whole image encoder
    outside: float  # the same for what no adapter holds: biases, norms, embeddings

    @property
    def sentence(self) -> str:
        """Return a sentence for people."""
        low, high = (min(self.ranks.values()), max(self.ranks.values())) if self.ranks else (0, 0)
        return (
            f"ranks {low} to {high} in {len(self.ranks)} modules; {100 * self.error:.2f} % of the task vector's norm "
            f"are lost, {100 * self.outside:.2f} % of it because LoRA holds linear layers only"
        )


def write_adapter(folder: Path, base: Weights, merged: Weights, rank: int | None = None) -> Kept:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors`` for a CLIPVisionModelWithProjection.

    Each linear layer's task vector is cut by its singular value decomposition, the best approximation of its rank.

    Args:
        folder: an existing folder.
        base: the base's ``visual.*`` tensors.
        merged: the merged ``visual.*`` tensors.
        rank: of every layer; None takes the smallest that keeps 99 % of the squared norm (ENERGY), layer by layer.

    Raises:
        EngineError: the merge moved no linear layer.

    Source: Hu et al., ICLR 2022, arXiv:2106.09685, Eq. 3, with scale α / r = 1.
    """
    before, after = ToHuggingFace(base), ToHuggingFace(merged)
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    total = lost = outside = 0.0
    for name in after.names:
        delta = after.tensor(name).double() - before.tensor(name).double()
        square = float(delta.square().sum())
        total += square
        module = name.removesuffix(".weight")
        if not name.endswith(".weight") or module.rsplit(".", 1)[-1] not in LINEAR:
            lost, outside = lost + square, outside + square
        elif square > 0:
            up, down = _cut(delta, rank)
            tensors[f"{PREFIX}{module}.lora_A.weight"] = down.float().contiguous()
            tensors[f"{PREFIX}{module}.lora_B.weight"] = up.float().contiguous()
            ranks[module] = down.shape[0]
            lost += float((delta - up @ down).square().sum())
    if not ranks:
        raise EngineError("The merge moved no linear layer, so an adapter would be empty.")
    write_weights(folder / "adapter_model.safetensors", Memory(tensors), metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(_config(ranks), indent=2) + "\n", "utf-8")
    return Kept(ranks, math.sqrt(lost / total), math.sqrt(outside / total))


def _cut(delta: Tensor, rank: int | None) -> tuple[Tensor, Tensor]:
    """The factors (out, r) and (r, in) nearest to a matrix; singular values are shared between them."""
    left, values, right = torch.linalg.svd(delta, full_matrices=False)
    if rank is None:
        energy = values.square().cumsum(0) / values.square().sum()
        rank = int((energy < ENERGY).sum()) + 1
    rank = min(rank, len(values))
    roots = values[:rank].sqrt()
    return left[:, :rank] * roots, roots[:, None] * right[:rank]


def _config(ranks: dict[str, int]) -> dict[str, object]:
    most = max(ranks.values())
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": most,
        "lora_alpha": most,
        "rank_pattern": ranks,
        "alpha_pattern": ranks,
        "target_modules": sorted(ranks),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "init_lora_weights": True,
    }
