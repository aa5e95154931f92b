"""Tensors of tests in safetensors files that xz compresses, which git does not do well to floats."""

import json
import lzma
from pathlib import Path

import numpy as np
from safetensors.numpy import save
from safetensors.torch import load
from torch import Tensor

NUMBERS = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 2, "lp": 2, "pb": 2}  # of four bytes


def pack(path: Path, tensors: dict[str, np.ndarray], about: dict[str, str]) -> None:
    """Write tensors and a few words about them."""
    path.write_bytes(lzma.compress(save(tensors, metadata=about), filters=[NUMBERS]))


def unpack(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and what is said about them."""
    content = lzma.decompress(path.read_bytes())
    head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return load(content), head["__metadata__"]
