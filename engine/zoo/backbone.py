"""The image encoder: open_clip's own vision towers, built from a config and filled with a zoo's weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ZooError, nearest
from ..manifest import Manifest, Preprocess, resolve_inside
from ..types import Weights

PREFIX = "visual."
MAX_CONFIG_BYTES = 100_000
OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
OPENAI_STD = (0.26862954, 0.26130258, 0.27577711)


def architecture(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """The open_clip model config of a zoo's backbone.

    Raises:
        ZooError: the config is missing, unreadable or names no known architecture.
    """
    name = manifest.backbone.architecture
    config = _read_config(resolve_inside(folder, name)) if name.endswith(".json") else _named_config(name)
    gelu = manifest.backbone.quick_gelu
    if gelu is not None:
        config["quick_gelu"] = gelu
    return config


def build_encoder(config: Mapping[str, Any]) -> nn.Module:
    """An open_clip vision tower with random weights, in evaluation mode.

    Its output is the un-normalised image embedding (n, embed_dim).

    Raises:
        ZooError: the config cannot be built.
    """
    from open_clip.model import _build_vision_tower

    try:
        with torch.device("meta"):
            encoder = _build_vision_tower(
                config["embed_dim"], dict(config["vision_cfg"]), bool(config.get("quick_gelu", False))
            )
        return encoder.to_empty(device="cpu").eval().requires_grad_(False)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise ZooError(f"The backbone's config cannot be built by open_clip: {error}.") from error


def load_encoder(config: Mapping[str, Any], weights: Weights) -> nn.Module:
    """An encoder with the ``visual.*`` tensors of a model.

    Raises:
        ZooError: a tensor is missing or of another shape than the architecture's.
    """
    encoder = build_encoder(config)
    with torch.no_grad():
        for name, parameter in encoder.state_dict(keep_vars=True).items():
            stored = PREFIX + name
            if stored not in weights.names:
                raise ZooError(f"The weights hold no {stored}, which the backbone's architecture has.")
            if weights.shape(stored) != tuple(parameter.shape):
                raise ZooError(
                    f"{stored} has shape {weights.shape(stored)}; the backbone's architecture has "
                    f"{tuple(parameter.shape)}. Choose weights of this architecture."
                )
            parameter.copy_(weights.tensor(stored))
    return encoder


def forward_with(encoder: nn.Module, weights: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Features (n, dim) with some of the encoder's weights replaced; differentiable in them.

    Args:
        encoder: the module that gives the structure.
        weights: tensors by canonical name (``visual.…``).
        images: pre-processed images (n, 3, h, w).
    """
    renamed = {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}
    return torch.func.functional_call(encoder, renamed, (images,))


def preprocessing(folder: Path, manifest: Manifest) -> Preprocess:
    """The zoo's own preprocessing, else OpenAI CLIP's at the architecture's image size."""
    if manifest.backbone.preprocess is not None:
        return manifest.backbone.preprocess
    size = architecture(folder, manifest)["vision_cfg"]["image_size"]
    return Preprocess(size=size, mean=OPENAI_MEAN, std=OPENAI_STD)


def to_tensor(images: Any, preprocess: Preprocess) -> Tensor:
    """Turn uint8 images (n, h, w, 3) into normalised float32 (n, 3, size, size)."""
    from torchvision.transforms.v2 import functional as tv

    tensor = torch.as_tensor(images).permute(0, 3, 1, 2)
    height, width = tensor.shape[-2:]
    if (height, width) != (preprocess.size, preprocess.size):
        target = [preprocess.size] * (1 if preprocess.resize_mode == "shortest" else 2)
        tensor = tv.resize(tensor, target, interpolation=_interpolation(preprocess), antialias=True)
        tensor = tv.center_crop(tensor, [preprocess.size, preprocess.size])
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (preprocess.mean, preprocess.std))
    return tensor.float().div_(255).sub_(mean).div_(std)


def _interpolation(preprocess: Preprocess) -> Any:
    from torchvision.transforms import InterpolationMode

    return InterpolationMode(preprocess.interpolation)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ZooError(f"{path.name} is too large for a model config.")
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ZooError(f"The backbone's config {path.name} cannot be read: {error}.") from error
    missing = {"embed_dim", "vision_cfg"} - set(config if isinstance(config, dict) else ())
    if missing:
        raise ZooError(f"The backbone's config {path.name} lacks {', '.join(sorted(missing))}.")
    if "timm_model_name" in config["vision_cfg"]:
        raise ZooError("Backbones from timm are not supported; give an open_clip ViT config.")
    return config


@cache
def _known_architectures() -> tuple[str, ...]:
    import open_clip

    return tuple(open_clip.list_models())


def _named_config(name: str) -> dict[str, Any]:
    import open_clip

    if name not in _known_architectures():
        raise ZooError(f"open_clip knows no architecture '{name}'. {nearest(name, _known_architectures())}")
    return dict(open_clip.get_model_config(name))
