"""The image encoder: open_clip's own vision towers, built from a config and filled with a zoo's weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import ZooError
from ...manifest import Preprocess
from ...types import Weights
from .architecture import architecture, check_config, preprocessing

__all__ = [
    "architecture",
    "build_encoder",
    "forward_with",
    "load_encoder",
    "misfits",
    "normalised",
    "outline",
    "preprocessing",
    "resized",
    "to_tensor",
]

PREFIX = "visual."


def build_encoder(config: Mapping[str, Any]) -> nn.Module:
    """Return an open_clip vision tower without values yet, in evaluation mode.

    Its output is the un-normalised image embedding (n, embed_dim).

    Raises:
        ZooError: the config cannot be built.
    """
    return outline(config).to_empty(device="cpu").eval().requires_grad_(False)


def outline(config: Mapping[str, Any]) -> nn.Module:
    """Return the same tower on the meta device: names and shapes, no memory.

    Raises:
        ZooError: the config cannot be built.
    """
    from open_clip.model import _build_vision_tower

    check_config(config, "of the weights")
    try:
        with torch.device("meta"):
            return _build_vision_tower(
                config["embed_dim"], dict(config["vision_cfg"]), bool(config.get("quick_gelu", False))
            )
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, AssertionError) as error:
        raise ZooError(f"The backbone's config cannot be built by open_clip: {error}.") from error


def misfits(config: Mapping[str, Any], weights: Weights) -> list[str]:
    """Return everything in which weights differ from an architecture, a sentence each; nothing but headers is read.

    Raises:
        ZooError: the config cannot be built.
    """
    expected = {PREFIX + name: tuple(tensor.shape) for name, tensor in outline(config).state_dict().items()}
    found = set(weights.names)
    sentences = [f"They lack {name}." for name in expected if name not in found]
    sentences += [
        f"They have {name}, which the architecture has not." for name in weights.names if name not in expected
    ]
    sentences += [
        f"{name} has shape {weights.shape(name)}; the architecture has {shape}."
        for name, shape in expected.items()
        if name in found and weights.shape(name) != shape
    ]
    return sentences


def load_encoder(config: Mapping[str, Any], weights: Weights) -> nn.Module:
    """Return an encoder with the ``visual.*`` tensors of a model.

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
    """Return features (n, dim) with some of the encoder's weights replaced; differentiable in them.

    Args:
        encoder: the module that gives the structure.
        weights: tensors by canonical name (``visual.…``).
        images: pre-processed images (n, 3, h, w).
    """
    renamed = {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}
    return torch.func.functional_call(encoder, renamed, (images,))


def to_tensor(images: Any, preprocess: Preprocess) -> Tensor:
    """Turn uint8 images (n, h, w, 3) into normalised float32 (n, 3, size, size)."""
    return normalised(resized(images, preprocess), preprocess)


def resized(images: Any, preprocess: Preprocess) -> Tensor:
    """Turn uint8 images (n, h, w, 3) into uint8 (n, 3, size, size)."""
    from torchvision.transforms.v2 import functional as tv

    tensor = torch.as_tensor(np.asarray(images)).permute(0, 3, 1, 2)
    height, width = tensor.shape[-2:]
    if (height, width) != (preprocess.size, preprocess.size):
        target = [preprocess.size] * (1 if preprocess.resize_mode == "shortest" else 2)
        tensor = tv.resize(tensor, target, interpolation=_interpolation(preprocess), antialias=True)
        tensor = tv.center_crop(tensor, [preprocess.size, preprocess.size])
    return tensor


def normalised(pixels: Tensor, preprocess: Preprocess) -> Tensor:
    """Turn uint8 pixels (n, 3, size, size) into normalised float32, on the device that they are on."""
    values = (preprocess.mean, preprocess.std)
    mean, std = (torch.tensor(part, device=pixels.device).view(1, 3, 1, 1) for part in values)
    return pixels.float().div_(255).sub_(mean).div_(std)


def _interpolation(preprocess: Preprocess) -> Any:
    from torchvision.transforms import InterpolationMode

    return InterpolationMode(preprocess.interpolation)
