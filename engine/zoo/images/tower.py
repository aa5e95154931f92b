"""Structure of image encoders, open_clip's own vision towers, and how images become what they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import ZooError
from ...manifest import Preprocess
from .config import check_config

FEW = 4  # rows from which on a matrix product of a row does not depend on how many there are


def outline(config: Mapping[str, Any]) -> nn.Module:
    """Return an open_clip vision tower on the meta device: names and shapes, no memory.

    Its output is the un-normalised image embedding (n, embed_dim).

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


@torch.no_grad()
def features(tower: nn.Module, pixels: Tensor) -> Tensor:
    """Return the features (n, dim) of normalised pixels.

    A feature is read off the class token, so the last block of a plain vision transformer computes that one only: a
    tenth of the work of eight blocks. Towers of other kinds, and those that are watched, compute everything.
    """
    if not _reads_one_token(tower):
        return tower(pixels)
    *before, last = tower.transformer.resblocks
    tokens = tower._embeds(pixels)
    for block in before:
        tokens = block(tokens)
    read = slice(0, 1 if len(pixels) >= FEW else FEW)
    given, tokens = last.ln_1(tokens), tokens[:, read]
    tokens = tokens + last.ls_1(last.attention(given[:, read], given, given))
    tokens = tokens + last.ls_2(last.mlp(last.ln_2(tokens)))
    return tower.ln_post(tokens[:, 0]) @ tower.proj


def _reads_one_token(tower: nn.Module) -> bool:
    """Tell whether a tower is a plain vision transformer that nobody watches, read off its class token."""
    from open_clip.transformer import ResidualAttentionBlock, VisionTransformer

    if type(tower) is not VisionTransformer or tower.training or tower.proj is None or tower.output_tokens:
        return False
    blocks = tower.transformer.resblocks
    plain = tower.transformer.batch_first and all(type(block) is ResidualAttentionBlock for block in blocks)
    if not plain or tower.pool_type != "tok" or tower.attn_pool is not None:
        return False
    unseen = (tower, tower.transformer, *blocks[-1].modules())
    return not any(module._forward_hooks or module._forward_pre_hooks for module in unseen)


def _interpolation(preprocess: Preprocess) -> Any:
    from torchvision.transforms import InterpolationMode

    return InterpolationMode(preprocess.interpolation)
