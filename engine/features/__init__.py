"""From images to feature matrices, batched and bounded in memory."""

from .batches import Batches
from .encode import choose_device, device_class, encode

__all__ = ["Batches", "choose_device", "device_class", "encode"]
