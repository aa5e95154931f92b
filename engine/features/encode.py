"""Un-normalised features of samples through an encoder."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor, nn

from ..preparation import Preparation
from ..types import Progress
from ..zoo.encoders.backbone import features_of, resized, sample_bytes
from .batches import Batches, ran_out


def choose_device(wanted: str = "auto") -> torch.device:
    """Pick the device: CUDA where there is one, then Apple's MPS, then the CPU."""
    if wanted != "auto":
        return torch.device(wanted)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def device_class(device: torch.device) -> str:
    """Return the kind of arithmetic a device does, which is part of a step's identity."""
    if device.type != "cuda":
        return f"{device.type}/float32"
    return "cuda/bfloat16" if torch.cuda.is_bf16_supported() else "cuda/float16"


def encode(
    encoder: nn.Module,
    samples: np.ndarray,
    preprocess: Preparation,
    device: torch.device,
    progress: Progress,
    batches: Batches | None = None,
) -> Tensor:
    """Encode samples.

    Args:
        encoder: on the CPU or the device.
        samples: as task data give them, such as images uint8 (n, h, w, 3) or ids of texts int64 (n, 2, length).
        preprocess: how they become tensors.
        device: where to compute; on CUDA the encoder runs in half precision under autocast, features stay float32.
        progress: told the share of samples done after every batch.
        batches: finds and remembers how many samples are encoded at a time; a new one by default.

    Returns:
        Float32 features (n, dim) on the CPU, not normalised, rows in the order of ``samples``.

    Raises:
        EngineError: not even one sample fits into memory.
    """
    encoder = encoder.to(device)
    batches = batches or Batches()
    size = batches.begin(sample_bytes(encoder, preprocess), device)
    rows: list[Tensor] = []
    done, message = 0, ""
    with _Ahead(samples, preprocess, device) as ahead:
        while done < len(samples):
            try:
                rows.append(_batch(encoder, ahead.take(done, size), preprocess, device, batches))
            except (RuntimeError, MemoryError) as error:
                if not ran_out(error):
                    raise
                size = batches.halve(error, device)
                message = f"out of memory: batches of {size} now"
                progress(done / len(samples), message)
                continue
            done += len(rows[-1])
            size = batches.size
            progress(done / len(samples), message)
    return torch.cat(rows) if rows else torch.empty(0, 0)


@torch.inference_mode()
def _batch(
    encoder: nn.Module, prepared: Tensor, preprocess: Preparation, device: torch.device, batches: Batches
) -> Tensor:
    """Return the features of one batch of prepared samples (b, …)."""
    if device.type != "cuda":
        return features_of(encoder, prepared.to(device), preprocess).float().cpu()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    half = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    with torch.autocast("cuda", half):
        features = features_of(encoder, prepared.to(device, non_blocking=True), preprocess).float().cpu()
    batches.measured(torch.cuda.max_memory_allocated(device) - before, len(prepared), device)
    return features


class _Ahead:
    """Prepares the next samples on the CPU while an accelerator encodes the current ones."""

    def __init__(self, samples: np.ndarray, preprocess: Preparation, device: torch.device) -> None:
        self._samples, self._preprocess = samples, preprocess
        self._pool = ThreadPoolExecutor(1) if device.type == "cuda" else None
        self._next: tuple[int, int, Future[Tensor]] | None = None

    def __enter__(self) -> _Ahead:
        """Return the reader; nothing is read yet."""
        return self

    def __exit__(self, *reason: object) -> None:
        """Cancel what is still being prepared."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def take(self, start: int, count: int) -> Tensor:
        """Return prepared samples from ``start`` on, (count, …), and prepare as many after them meanwhile."""
        if self._pool is None:
            return self._prepare(start, count)
        if self._next is not None and self._next[:2] == (start, count):
            prepared = self._next[2].result()
        else:
            prepared = self._prepare(start, count)
        after = start + count
        if after < len(self._samples):
            self._next = (after, count, self._pool.submit(self._prepare, after, count))
        return prepared

    def _prepare(self, start: int, count: int) -> Tensor:
        prepared = resized(self._samples[start : start + count], self._preprocess)
        return prepared.contiguous().pin_memory() if self._pool is not None else prepared
