"""Un-normalised image features through an encoder."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from ..manifest import Preprocess
from ..types import Progress
from ..zoo.backbone import to_tensor

CPU_BATCH = 64
GPU_BATCH = 512


def choose_device(wanted: str = "auto") -> torch.device:
    """Pick the device: CUDA where there is one, then Apple's MPS, then the CPU."""
    if wanted != "auto":
        return torch.device(wanted)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def device_class(device: torch.device) -> str:
    """What kind of arithmetic a device does; part of a step's identity."""
    if device.type != "cuda":
        return f"{device.type}/float32"
    return "cuda/bfloat16" if torch.cuda.is_bf16_supported() else "cuda/float16"


def encode(
    encoder: nn.Module, images: np.ndarray, preprocess: Preprocess, device: torch.device, progress: Progress
) -> Tensor:
    """Encode images.

    Args:
        encoder: a vision tower on the CPU or the device.
        images: uint8 (n, h, w, 3).
        preprocess: how images become tensors.
        device: where to compute; on CUDA the encoder runs in half precision under autocast, features stay float32.
        progress: told the share of images done after every batch.

    Returns:
        Float32 features (n, dim) on the CPU, not normalised, rows in the order of ``images``.
    """
    encoder = encoder.to(device)
    size = CPU_BATCH if device.type == "cpu" else GPU_BATCH
    rows: list[Tensor] = []
    done = 0
    while done < len(images):
        try:
            rows.append(_batch(encoder, images[done : done + size], preprocess, device))
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size = max(1, size // 2)
            torch.cuda.empty_cache()
            progress(done / len(images), f"out of memory: batches of {size} now")
            continue
        done += len(rows[-1])
        progress(done / len(images))
    return torch.cat(rows) if rows else torch.empty(0, 0)


@torch.inference_mode()
def _batch(encoder: nn.Module, images: np.ndarray, preprocess: Preprocess, device: torch.device) -> Tensor:
    pixels = to_tensor(images, preprocess).to(device)
    half = nullcontext()
    if device.type == "cuda":
        half = torch.autocast("cuda", torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16)
    with half:
        return encoder(pixels).float().cpu()
