"""CLIP in Hugging Face's naming and in open_clip's: the same tensors, other names, q, k and v split or fused.

Facts: the tensor names of transformers' CLIP models. ``vision_model.pre_layrnorm`` is spelled so there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, ZooError
from ..types import Weights

PROJECTION = "visual_projection.weight"
VISION, TEXT = "vision_model.", "text_model."
BUFFERS = ("embeddings.position_ids",)  # numbers 0, 1, 2 …, stored by older versions
_TOP = {
    "visual.": {
        "embeddings.class_embedding": "class_embedding",
        "embeddings.position_embedding.weight": "positional_embedding",
        "embeddings.patch_embedding.weight": "conv1.weight",
        "pre_layrnorm.weight": "ln_pre.weight",
        "pre_layrnorm.bias": "ln_pre.bias",
        "post_layernorm.weight": "ln_post.weight",
        "post_layernorm.bias": "ln_post.bias",
    },
    "": {
        "embeddings.token_embedding.weight": "token_embedding.weight",
        "embeddings.position_embedding.weight": "positional_embedding",
        "final_layer_norm.weight": "ln_final.weight",
        "final_layer_norm.bias": "ln_final.bias",
    },
}
_WHOLE = {PROJECTION: "visual.proj", "text_projection.weight": "text_projection", "logit_scale": "logit_scale"}
_BLOCK = {"layer_norm1": "ln_1", "layer_norm2": "ln_2", "self_attn.out_proj": "attn.out_proj"}
_BLOCK |= {"mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_TRANSPOSED = ("visual.proj", "text_projection")
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)\.(weight|bias)")
_RESBLOCK = re.compile(r"(.*)transformer\.resblocks\.(\d+)\.(.+)")


def canonical_name(name: str) -> tuple[str, int] | None:
    """Return open_clip's name of a tensor, and for q, k and v which third of it (0, 1, 2; otherwise -1).

    Args:
        name: as in a complete CLIP model: ``vision_model.…``, ``text_model.…``, ``visual_projection.weight`` ….

    Returns:
        None where open_clip has no such tensor.
    """
    if name in _WHOLE:
        return _WHOLE[name], -1
    for start, side in ((VISION, "visual."), (TEXT, "")):
        if name.startswith(start):
            return _inside(name.removeprefix(start), side)
    return None


def _inside(name: str, side: str) -> tuple[str, int] | None:
    if name in _TOP[side]:
        return side + _TOP[side][name], -1
    matched = _LAYER.fullmatch(name)
    if not matched:
        return None
    layer, part, kind = matched.groups()
    block = f"{side}transformer.resblocks.{layer}."
    if part in _QKV:
        return f"{block}attn.in_proj_{kind}", _QKV.index(part)
    return (f"{block}{_BLOCK[part]}.{kind}", -1) if part in _BLOCK else None


@dataclass
class FromHuggingFace:
    """Weights in Hugging Face's naming, seen under open_clip's names. Nothing is read before it is asked for.

    Raises:
        CheckpointError: tensors that open_clip's CLIP does not have, or a q, k or v is missing.
    """

    weights: Weights
    stored: Mapping[str, str]  # name as in a complete CLIP model → name in the file
    _parts: dict[str, tuple[str, ...]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Group the file's tensors under canonical names."""
        groups: dict[str, dict[int, str]] = {}
        strangers = []
        for name, own in self.stored.items():
            found = canonical_name(name)
            if found is None:
                strangers.append(own)
            else:
                groups.setdefault(found[0], {})[found[1]] = own
        if strangers:
            raise CheckpointError(
                f"The file holds {', '.join(f'{name:.100}' for name in strangers[:4])}, which a CLIP vision model does "
                "not have. Choose a CLIP checkpoint."
            )
        for name, group in groups.items():
            if -1 not in group and set(group) != {0, 1, 2}:
                raise CheckpointError(f"The file lacks one of the query, key and value parts of {name}.")
            self._parts[name] = tuple(group[index] for index in sorted(group))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the canonical names."""
        return tuple(self._parts)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor, fused or transposed."""
        first, *others = (self.weights.shape(part) for part in self._parts[name])
        if any(shape != first for shape in others):
            raise CheckpointError(f"Query, key and value parts of {name} differ in shape: {first} and {others}.")
        if name in _TRANSPOSED:
            return tuple(reversed(first))
        return (first[0] * (1 + len(others)), *first[1:]) if others else first

    def dtype(self, name: str) -> torch.dtype:
        """Return the stored dtype of one tensor."""
        return self.weights.dtype(self._parts[name][0])

    def tensor(self, name: str) -> Tensor:
        """Read one tensor."""
        parts = [self.weights.tensor(part) for part in self._parts[name]]
        found = torch.cat(parts) if len(parts) > 1 else parts[0]
        return found.T.contiguous() if name in _TRANSPOSED else found


@dataclass
class ToHuggingFace:
    """An image encoder's ``visual.*`` tensors under Hugging Face's names, q, k and v split.

    Raises:
        ZooError: the encoder has parts that Hugging Face's CLIP vision model does not have.
    """

    weights: Weights
    _parts: dict[str, tuple[str, int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Give every tensor its other names."""
        top = {f"visual.{ours}": VISION + theirs for theirs, ours in _TOP["visual."].items()}
        block = {ours: theirs for theirs, ours in _BLOCK.items()}
        for name in self.weights.names:
            matched = _RESBLOCK.fullmatch(name)
            if name == "visual.proj":
                self._parts[PROJECTION] = (name, -1)
            elif name in top:
                self._parts[top[name]] = (name, -1)
            elif matched and matched[1] == "visual.":
                self._take_block(name, f"{VISION}encoder.layers.{matched[2]}.", matched[3], block)
            else:
                raise _no_place(name)

    def _take_block(self, name: str, place: str, rest: str, block: Mapping[str, str]) -> None:
        part, _, kind = rest.rpartition(".")
        if rest in ("attn.in_proj_weight", "attn.in_proj_bias"):
            for index, theirs in enumerate(_QKV):
                self._parts[f"{place}{theirs}.{rest.removeprefix('attn.in_proj_')}"] = (name, index)
        elif part in block:
            self._parts[f"{place}{block[part]}.{kind}"] = (name, -1)
        else:
            raise _no_place(name)

    @property
    def origins(self) -> dict[str, tuple[str, int]]:
        """Hugging Face's names → ours, and which third of it (0, 1, 2; otherwise -1)."""
        return dict(self._parts)

    @property
    def names(self) -> tuple[str, ...]:
        """Return Hugging Face's names."""
        return tuple(self._parts)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        own, index = self._parts[name]
        shape = self.weights.shape(own)
        if name == PROJECTION:
            return tuple(reversed(shape))
        return (shape[0] // 3, *shape[1:]) if index >= 0 else shape

    def dtype(self, name: str) -> torch.dtype:
        """Return the stored dtype of one tensor."""
        return self.weights.dtype(self._parts[name][0])

    def tensor(self, name: str) -> Tensor:
        """Read one tensor; a fused one is read for each of its thirds, so that one is in memory at a time."""
        own, index = self._parts[name]
        found = self.weights.tensor(own)
        if name == PROJECTION:
            return found.T.contiguous()
        return found.chunk(3)[index].contiguous() if index >= 0 else found


def complete_names(names: Iterable[str], outer: str) -> dict[str, str]:
    """Map names as a complete CLIP model has them to names in a file, whose vision part may lack its prefix.

    Args:
        names: names in the file, without buffers.
        outer: what stands before every name, such as ``model.``.
    """
    found = {}
    for name in names:
        bare = name.removeprefix(outer)
        if bare.endswith(BUFFERS):
            continue
        whole = bare.startswith((VISION, TEXT)) or bare in _WHOLE
        found[bare if whole else VISION + bare] = name
    return found


def vision_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return open_clip's model config for a Hugging Face CLIP or CLIP vision config.

    Raises:
        ZooError: no CLIP, a value is missing, or something that open_clip cannot express.
    """
    vision = config.get("vision_config") or config
    if not isinstance(vision, dict):
        raise ZooError(f"config.json has a vision_config that is a {type(vision).__name__}; a table is needed.")
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size")
    defaults = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224}
    defaults |= {"patch_size": 32, "intermediate_size": 3072, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
    values = {**defaults, **{name: vision[name] for name in defaults if name in vision}}
    if not str(config.get("model_type", "clip")).startswith("clip"):
        raise ZooError(f"config.json describes a '{config.get('model_type')!s:.40}' model; a CLIP model is needed.")
    for name in (*names, "intermediate_size"):
        if isinstance(values[name], bool) or not isinstance(values[name], int) or not 0 < values[name] < 2**20:
            raise ZooError(f"config.json gives {name} {values[name]!s:.40}; a whole number greater than 0 is needed.")
    if values["hidden_size"] % values["num_attention_heads"]:
        raise ZooError(
            f"config.json divides a width of {values['hidden_size']} by {values['num_attention_heads']} heads."
        )
    if values["hidden_act"] not in ("quick_gelu", "gelu"):
        raise ZooError(
            f"config.json names the activation '{values['hidden_act']!s:.40}'; quick_gelu or gelu is needed."
        )
    epsilon = values["layer_norm_eps"]
    if not isinstance(epsilon, int | float) or not abs(epsilon - 1e-5) <= 1e-9:
        raise ZooError(f"config.json has layer_norm_eps {epsilon!s:.20}; open_clip's CLIP has 1e-5.")
    width = values["hidden_size"]
    text = _text_config(config, values["hidden_act"])
    return {
        **({"text_cfg": text} if text else {}),
        "embed_dim": config.get("projection_dim", vision.get("projection_dim", 512)),
        "quick_gelu": values["hidden_act"] == "quick_gelu",
        "vision_cfg": {
            "image_size": values["image_size"],
            "layers": values["num_hidden_layers"],
            "width": width,
            "head_width": width // values["num_attention_heads"],
            "patch_size": values["patch_size"],
            "mlp_ratio": values["intermediate_size"] / width,
        },
    }


def _text_config(config: Mapping[str, Any], activation: str) -> dict[str, Any]:
    """open_clip's config for the text side of a complete CLIP; empty where it cannot be expressed."""
    text = config.get("text_config")
    if not isinstance(text, dict):
        return {}
    defaults = {"vocab_size": 49408, "max_position_embeddings": 77, "hidden_size": 512, "intermediate_size": 2048}
    defaults |= {"num_attention_heads": 8, "num_hidden_layers": 12}
    values = {name: text.get(name, value) for name, value in defaults.items()}
    whole = all(type(value) is int and 0 < value < 2**24 for value in values.values())
    if not whole or text.get("hidden_act", "quick_gelu") != activation:
        return {}
    return {
        "context_length": values["max_position_embeddings"],
        "vocab_size": values["vocab_size"],
        "width": values["hidden_size"],
        "heads": values["num_attention_heads"],
        "layers": values["num_hidden_layers"],
        "mlp_ratio": values["intermediate_size"] / values["hidden_size"],
    }


def huggingface_config(config: Mapping[str, Any], mlp_width: int) -> dict[str, Any]:
    """Return the ``config.json`` of a ``CLIPVisionModelWithProjection`` for open_clip's model config.

    Args:
        config: as :func:`.backbone.architecture` gives it.
        mlp_width: width of a block's hidden layer, from the weights.
    """
    vision = config["vision_cfg"]
    width = vision["width"]
    return {
        "architectures": ["CLIPVisionModelWithProjection"],
        "model_type": "clip_vision_model",
        "attention_dropout": 0.0,
        "hidden_act": "quick_gelu" if config.get("quick_gelu") else "gelu",
        "hidden_size": width,
        "image_size": vision["image_size"],
        "intermediate_size": mlp_width,
        "layer_norm_eps": 1e-5,
        "num_attention_heads": width // vision.get("head_width", 64),
        "num_channels": 3,
        "num_hidden_layers": vision["layers"],
        "patch_size": vision["patch_size"],
        "projection_dim": config["embed_dim"],
        "torch_dtype": "float32",
    }


def _no_place(name: str) -> ZooError:
    return ZooError(f"{name:.100} has no place in Hugging Face's CLIP vision model, so the model cannot be written so.")
