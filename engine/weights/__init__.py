"""Checkpoints: safe reading and writing, alignment, and lazy task vectors."""

from .align import check_finite, check_same_architecture, encoder_part
from .files import Memory, SafetensorsFile, read_into, write_weights
from .pickled import PickledFile, is_torch_file, open_weights
from .task_vectors import LazyTaskVectors

__all__ = [
    "LazyTaskVectors",
    "Memory",
    "PickledFile",
    "SafetensorsFile",
    "check_finite",
    "check_same_architecture",
    "encoder_part",
    "is_torch_file",
    "open_weights",
    "read_into",
    "write_weights",
]
