"""From samples to feature matrices, batched and bounded in memory."""

from .batches import Batches, ran_out
from .encode import choose_device, device_class, encode

__all__ = ["Batches", "choose_device", "device_class", "encode", "ran_out"]
