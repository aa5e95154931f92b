"""LoRA adapters in PEFT's format, merged onto the base: the delta is the task vector.

Source: Hu et al., ICLR 2022, arXiv:2106.09685, Eq. 3 with scale α / r; rank-stabilised α / √r: Kalajdzievski 2023,
arXiv:2312.03732.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointError
from ...types import Weights
from ...weights.huggingface import TEXT, VISION, canonical_name
from .sources import Source

_TENSOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(A|B)(?:\.default)?\.weight")
Target = Callable[[str, Weights], tuple[str, int]]
_PLAIN = re.compile(r"[A-Za-z0-9_.]+")
_BASE_CHANGING = ("pissa", "olora", "corda", "loftq")  # initialisations whose base is no longer the one published
REFUSED = (
    "use_dora",
    "modules_to_save",
    "lora_bias",
    "use_qalora",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "megatron_config",
    "arrow_config",
    "use_bdlora",
)


@dataclass(frozen=True)
class Delta:
    """One product B A, to be added to (a third of) a tensor of the base."""

    down: str  # name of A in the adapter, (r, in)
    up: str  # name of B, (out, r)
    scale: float
    third: int  # 0, 1, 2 for q, k, v; −1 for the whole tensor
    transposed: bool


@dataclass
class Adapted:
    """The base with an adapter's deltas added, tensor by tensor; what they change is float32, so none is rounded."""

    base: Weights
    adapter: Weights
    deltas: Mapping[str, list[Delta]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the base's names."""
        return self.base.names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return self.base.shape(name)

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of one tensor."""
        own = self.base.dtype(name)
        return torch.promote_types(own, torch.float32) if name in self.deltas else own

    def tensor(self, name: str) -> Tensor:
        """Read one tensor."""
        found = self.base.tensor(name)
        if name not in self.deltas:
            return found
        total = found.to(self.dtype(name))
        for delta in self.deltas[name]:
            up, down = (self.adapter.tensor(part).to(total.dtype).flatten(1) for part in (delta.up, delta.down))
            product = (up @ down).T if delta.transposed else up @ down
            part = total if delta.third < 0 else total.chunk(3)[delta.third]
            part.add_(product.reshape(part.shape), alpha=delta.scale)
        return total


def adapt(
    source: Source, base: Weights, target: Target | None = None, beside: Collection[str] = ()
) -> tuple[Adapted, list[str]]:
    """Merge an adapter onto the base's encoder; nothing is computed before a tensor is asked for.

    Args:
        source: with ``adapter_config.json`` and the adapter's tensors.
        base: the canonical tensors.
        target: which tensor of the base a module's weight is, and which third of it; CLIP's by default.
        beside: tensors of the adapter that are whole layers, such as a classifier's.

    Returns:
        The merged weights, and what of the adapter was left out (its text side).

    Raises:
        CheckpointError: an option that is not plain LoRA, an unknown module, or shapes that do not fit.
    """
    config, target = source.adapter, target or _target
    _check_options({**config, "modules_to_save": None} if beside else config)
    pairs: dict[str, dict[str, str]] = {}
    for name in (name for name in source.weights.names if name not in beside):
        found = _TENSOR.fullmatch(name)
        if not found:
            raise CheckpointError(
                f"The adapter holds {name:.100}, which is no LoRA matrix of a linear layer. Merge it with PEFT's "
                "merge_and_unload and import the merged model."
            )
        pairs.setdefault(found[1], {})[found[2]] = name
    deltas: dict[str, list[Delta]] = {}
    text = 0
    for module, pair in pairs.items():
        if set(pair) != {"A", "B"}:
            raise CheckpointError(f"The adapter lacks the A or the B matrix of {module:.100}.")
        if f"{TEXT}" in module or module.endswith("text_projection"):
            text += 1
            continue
        name, third = target(module, base)
        deltas.setdefault(name, []).append(_delta(source, base, config, module, pair, name, third))
    if not deltas:
        raise CheckpointError("The adapter changes nothing of the encoder. Choose one that was trained on it.")
    return Adapted(base, source.weights, deltas), [f"{text} LoRA pairs of the text encoder"] if text else []


def _check_options(config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type", "LORA")
    if str(kind).upper() != "LORA":
        raise CheckpointError(f"The adapter is of type {kind!s:.40}; LORA is supported. Merge it with PEFT first.")
    for option in REFUSED:
        if config.get(option):
            raise CheckpointError(
                f"The adapter uses `{option}`, which is not supported. Merge it with PEFT's merge_and_unload and "
                "import the merged model."
            )
    if config.get("bias", "none") != "none":
        raise CheckpointError(f"The adapter was trained with bias: {config['bias']!s:.20}; only `none` is supported.")
    start = str(config.get("init_lora_weights", "")).lower()
    if start.startswith(_BASE_CHANGING):
        raise CheckpointError(
            f"The adapter was initialised with {start:.20}, which changes the base as well. Convert it with PEFT to a "
            "plain LoRA adapter, or import the merged model."
        )


def _target(module: str, base: Weights) -> tuple[str, int]:
    """Return the base's tensor that a module's weight is, and which third of it."""
    bare = module.removeprefix("model.")
    if bare.startswith("visual.") and f"{bare}.weight" in base.names:
        return f"{bare}.weight", -1
    place = bare if bare.startswith((VISION, "visual_projection")) else VISION + bare
    found = canonical_name(f"{place}.weight")
    if found is None or found[0] not in base.names:
        raise CheckpointError(
            f"The adapter changes {module:.100}, which the base does not have. It belongs to another model."
        )
    return found


def _delta(
    source: Source,
    base: Weights,
    config: Mapping[str, Any],
    module: str,
    pair: Mapping[str, str],
    name: str,
    third: int,
) -> Delta:
    down, up = source.weights.shape(pair["A"]), source.weights.shape(pair["B"])
    rank = _for_module(config, "rank_pattern", module, config.get("r"))
    if len(down) < 2 or len(up) < 2 or down[0] != up[1] or down[0] != rank or not rank:
        raise CheckpointError(
            f"The adapter's matrices of {module:.100} have shapes {down} and {up}; its config says rank {rank!s:.10}."
        )
    whole = base.shape(name)
    wanted = (whole[0] // 3, *whole[1:]) if third >= 0 else whole
    # open_clip keeps the projection transposed, PEFT's fan_in_fan_out layers do so themselves
    transposed = (name == "visual.proj") != bool(config.get("fan_in_fan_out"))
    rows, columns = up[0], math.prod(down[1:])
    given = (columns, rows) if transposed else (rows, columns)
    if given != (wanted[0], math.prod(wanted[1:])):
        raise CheckpointError(
            f"The adapter's delta for {module:.100} has shape {given}; the base's tensor has {wanted}. "
            "It was trained on another architecture."
        )
    alpha = _for_module(config, "alpha_pattern", module, config.get("lora_alpha", 8))
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
        raise CheckpointError(f"The adapter's lora_alpha is {alpha!s:.40}; a number is needed.")
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return Delta(pair["A"], pair["B"], scale, third, transposed)


def _for_module(config: Mapping[str, Any], key: str, module: str, default: Any) -> Any:
    """Return a module's own rank or alpha; keys are ends of module names.

    Departure: PEFT takes the keys as regular expressions; others than plain names are refused here.
    """
    patterns = config.get(key) or {}
    if not isinstance(patterns, dict):
        raise CheckpointError(f"The adapter's {key} is no table of modules.")
    for pattern, value in patterns.items():
        if not _PLAIN.fullmatch(pattern):
            raise CheckpointError(
                f"The adapter's {key} has the expression {pattern:.60}; only plain names are supported."
            )
        if module == pattern or module.endswith(f".{pattern}"):
            return value
    return default
