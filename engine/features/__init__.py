"""From images to feature matrices, batched and bounded in memory."""

from .encode import choose_device, device_class, encode

__all__ = ["choose_device", "device_class", "encode"]
