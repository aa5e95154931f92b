"""Drawn domain shifts: evaluation images as another camera or another hand would have given them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from .corruptions import CORRUPTIONS

NOISE = 0.12  # standard deviation, in units of the whole range of brightness
BLUR = 1 / 32  # standard deviation of the kernel, in sides of the image
CONTRAST = 0.35  # what is left of an image's contrast


def noise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise to every value."""
    return images + NOISE * torch.randn(images.shape, generator=generator)


def blur(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return a Gaussian blur that grows with the image's side."""
    sigma = BLUR * images.shape[-1]
    size = 2 * max(1, round(3 * sigma)) + 1
    return tv.gaussian_blur(images, [size, size], [sigma, sigma])


def contrast(images: Tensor, generator: torch.Generator) -> Tensor:
    """Lower the contrast around every image's own mean."""
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + CONTRAST * (images - mean)


def negative(images: Tensor, generator: torch.Generator) -> Tensor:
    """Invert every colour: bright for dark."""
    return 1 - images


SHIFTS: Mapping[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "noise": noise,
    "blur": blur,
    "contrast": contrast,
    "negative": negative,
}


SETS: Mapping[str, Mapping[str, Callable[[Tensor, torch.Generator], Tensor]]] = {
    "usual": SHIFTS,
    "corruptions": CORRUPTIONS,
}


def shift(pixels: Tensor, kind: str, task: str, seed: int) -> Tensor:
    """Shift every image of a task.

    Args:
        pixels: uint8 (n, 3, h, w).
        kind: of one of ``SETS``.
        task: chance depends on it, on the kind and on the seed only.
        seed: the split's.

    Returns:
        uint8 of the same shape.

    Source: Hendrycks & Dietterich, ICLR 2019, arXiv:1903.12261 (noise, blur and contrast; our own severities);
        Hosseini et al., 2017, arXiv:1703.06857 (negatives). Corruptions: the seven of AdaMerging's and FusionBench's
        tables of robustness, with the parameters of severity 5 for images of 32 pixels (CIFAR-10-C of Hendrycks &
        Dietterich; ``fusion_bench/dataset/image_corruption`` of FusionBench 0.2.33).
    Departure: written from those parameters; motion is drawn at whole pixels, where ImageMagick draws it there.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(f"{task}/{kind}/{seed}".encode()))
    shifted = next(kinds[kind] for kinds in SETS.values() if kind in kinds)
    return shifted(pixels.float() / 255, generator).clamp(0, 1).mul(255).round().to(torch.uint8)
