"""Batch sizes: as many samples as memory holds and the device gains from, fewer after running out of it."""

from __future__ import annotations

import psutil
import torch

from ..errors import EngineError

TRIAL = 16  # samples of the first batch on an accelerator, whose memory tells how many fit
MOST = {"cpu": 64, "cuda": 1024, "mps": 256}
SHARE = {"cpu": 0.25, "cuda": 0.7, "mps": 0.5}  # of the free memory that a batch may take
SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "failed to allocate")


class Batches:
    """Finds a batch size for one encoder on one device, and remembers whether it had to be halved."""

    def __init__(self, known: int = 0) -> None:
        """Start from a known size, or from none.

        Args:
            known: a size that served this architecture on this device before; 0 when none is known.
        """
        self.size = known
        self.tried = bool(known)  # nothing is left to be found out
        self.halved = False

    def begin(self, each: int, device: torch.device) -> int:
        """Return the size of the first batch of samples that take so many bytes each."""
        fitting = _fitting(each, device)
        if not self.size:
            self.size = min(TRIAL, fitting) if device.type == "cuda" else fitting
            self.tried = device.type != "cuda"
        elif device.type != "cuda":
            self.size = min(self.size, fitting)  # there may be less memory now; a CPU does not say so in time
        return self.size

    def measured(self, taken: int, count: int, device: torch.device) -> int:
        """Return the size of the following batches, from the memory that a batch has taken on an accelerator.

        Args:
            taken: bytes.
            count: samples in it.
            device: where.
        """
        if not self.tried and count:
            self.size = max(self.size, _fitting(max(taken // count, 1), device))
            self.tried = True
        return self.size

    def halve(self, error: Exception, device: torch.device) -> int:
        """Halve the size after a batch that did not fit, and never exceed it again.

        Raises:
            EngineError: not even one sample fits.
        """
        if self.size <= 1:
            raise EngineError(
                f"Encoding a single sample ran out of memory on {device.type}. Close other programs that use it, or "
                "choose a smaller architecture."
            ) from error
        self.size, self.tried, self.halved = self.size // 2, True, True
        if device.type == "cuda":
            torch.cuda.empty_cache()
        elif device.type == "mps":
            torch.mps.empty_cache()
        return self.size


def ran_out(error: Exception) -> bool:
    """Tell whether an error says that memory is used up, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)


def _fitting(each: int, device: torch.device) -> int:
    """Return the largest power of two of samples that fits, within what a device gains from."""
    many = int(_free(device) * SHARE.get(device.type, 0.25)) // each
    most = min(many, MOST.get(device.type, 64))
    return 1 << max(most.bit_length() - 1, 0)


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    return psutil.virtual_memory().available
