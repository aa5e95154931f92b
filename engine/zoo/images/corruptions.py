"""Seven corruptions of images by which papers on merging measure robustness, at their highest severity."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch import Tensor
from torch.nn import functional

NOISE = 0.10  # standard deviation, in units of the whole range of brightness
IMPULSES = 0.07  # share of values that become black or white
MOTION = (9, 2.5)  # radius in pixels, and standard deviation of the weights along the way
ANGLE = 45.0  # degrees on both sides of horizontal
MUD = (0.65, 0.1, 0.5, 0.68, 0.6)  # mean, deviation and blur of a wet layer, from where it stays, blur of its edge
MUD_COLOUR = (63 / 255, 42 / 255, 20 / 255)
OPAQUE = 0.8  # what of a blurred edge is seen
CONTRAST = 0.15  # what is left of a channel's contrast
QUALITY = 40  # of JPEG
PIXELS = 0.65  # side of the smaller image, in sides of the image


def gaussian_noise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise to every value."""
    return images + NOISE * torch.randn(images.shape, generator=generator)


def impulse_noise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Make some values black or white."""
    chosen = torch.rand(images.shape, generator=generator) < IMPULSES
    white = (torch.rand(images.shape, generator=generator) < 0.5).to(images.dtype)
    return torch.where(chosen, white, images)


def motion_blur(images: Tensor, generator: torch.Generator) -> Tensor:
    """Smear every image along a direction of its own, with Gaussian weights to one side; edges go on outside."""
    radius, sigma = MOTION
    weights = torch.exp(-torch.arange(2 * radius + 1).square() / (2 * sigma**2))
    weights = weights / weights.sum()
    angles = (2 * torch.rand(len(images), generator=generator) - 1) * math.radians(ANGLE)
    margin = 2 * radius + 1
    wide = functional.pad(images, (margin,) * 4, mode="replicate")
    height, width = images.shape[-2:]
    blurred = torch.zeros_like(images)
    for number, angle in enumerate(angles.tolist()):
        for step, weight in enumerate(weights.tolist()):
            down, right = margin + round(step * math.sin(angle)), margin + round(step * math.cos(angle))
            blurred[number] += weight * wide[number, :, down : down + height, right : right + width]
    return blurred


def pixelate(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shrink every image and enlarge it again without smoothing."""

    def smaller(image: Image.Image) -> Image.Image:
        size = tuple(max(int(side * PIXELS), 1) for side in image.size)
        return image.resize(size, Image.Resampling.BOX).resize(image.size, Image.Resampling.BOX)

    return _pictures(images, smaller)


def spatter(images: Tensor, generator: torch.Generator) -> Tensor:
    """Cover parts of every image with mud."""
    mean, deviation, blur, level, edge = MUD
    size = (len(images), *images.shape[-2:])
    layer = gaussian_filter((mean + deviation * torch.randn(size, generator=generator)).numpy(), (0, blur, blur))
    mask = gaussian_filter((layer > level).astype(np.float32), (0, edge, edge))
    mask[mask < OPAQUE] = 0
    covered = torch.from_numpy(mask)[:, None].to(images.dtype)
    return images * (1 - covered) + torch.tensor(MUD_COLOUR, dtype=images.dtype).view(1, 3, 1, 1) * covered


def contrast(images: Tensor, generator: torch.Generator) -> Tensor:
    """Lower the contrast around the mean of every channel of an image."""
    mean = images.mean((2, 3), keepdim=True)
    return mean + CONTRAST * (images - mean)


def jpeg(images: Tensor, generator: torch.Generator) -> Tensor:
    """Compress every image as JPEG."""

    def compressed(image: Image.Image) -> Image.Image:
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=QUALITY)
        return Image.open(stream).convert("RGB")

    return _pictures(images, compressed)


def _pictures(images: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Change images (n, 3, h, w) in [0, 1] as Pillow's."""
    arrays = images.mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
    changed = [np.asarray(change(Image.fromarray(array))) for array in arrays]
    return torch.from_numpy(np.stack(changed)).permute(0, 3, 1, 2).to(images.dtype) / 255


CORRUPTIONS: Mapping[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "motion_blur": motion_blur,
    "impulse_noise": impulse_noise,
    "gaussian_noise": gaussian_noise,
    "pixelate": pixelate,
    "spatter": spatter,
    "low_contrast": contrast,
    "jpeg": jpeg,
}
