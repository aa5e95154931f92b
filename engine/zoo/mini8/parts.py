"""Trained parts of a build that are kept, so that a build that was interrupted goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

State = dict[str, Tensor]


def fingerprint(*things: Any) -> str:
    """Return the sha256 of arrays, tensors, settings and mappings or sequences of them, in their order."""
    digest = hashlib.sha256()
    for thing in things:
        if isinstance(thing, torch.Tensor):
            thing = thing.detach().contiguous().numpy()
        if isinstance(thing, np.ndarray):
            digest.update(f"{thing.dtype}{thing.shape}".encode() + np.ascontiguousarray(thing).tobytes())
        elif isinstance(thing, Mapping):
            digest.update(fingerprint(*(part for pair in thing.items() for part in pair)).encode())
        elif isinstance(thing, tuple | list):
            digest.update(fingerprint(*thing).encode())
        elif is_dataclass(thing) and not isinstance(thing, type):
            digest.update(json.dumps(asdict(thing), sort_keys=True).encode())
        else:
            digest.update(json.dumps(thing).encode())
        digest.update(b"\0")
    return digest.hexdigest()


class Parts:
    """Tensors by name and by all that they were made of: in memory, and in a folder where one is given.

    ``seconds`` holds the wall time that each part took when it was trained.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.seconds: dict[str, float] = {}
        self._known: dict[str, State] = {}

    def take(self, name: str, made_of: tuple[Any, ...], train: Callable[[], Mapping[str, Tensor]]) -> State:
        """Return a part, trained only where it is not kept yet.

        Args:
            name: for people, and the beginning of the file's name.
            made_of: what determines the part; see :func:`fingerprint`.
            train: makes it.
        """
        key = f"{name}-{fingerprint(*made_of)[:16]}"
        if key in self._known:
            return self._known[key]
        path = self.folder / f"{key}.safetensors" if self.folder else None
        if path and path.is_file():
            with safe_open(path, "pt") as file:
                state = {tensor: file.get_tensor(tensor) for tensor in list(file.keys())}
                seconds = float((file.metadata() or {})["seconds"])
        else:
            started = time.monotonic()
            state = {tensor: value.detach().contiguous().clone() for tensor, value in train().items()}
            seconds = round(time.monotonic() - started, 1)
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
                unfinished = path.with_suffix(".unfinished")
                save_file(state, unfinished, {"seconds": str(seconds)})
                unfinished.replace(path)
        self._known[key], self.seconds[name] = state, seconds
        return state
