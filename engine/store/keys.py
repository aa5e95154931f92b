"""Content keys of steps and digests of files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def canonical_json(value: Any) -> str:
    """Write JSON with sorted keys and no spaces, the form that is hashed.

    Raises:
        TypeError: the value is not JSON.
        ValueError: the value holds NaN or an infinity.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain)


def step_key(
    step: str, version: int, params: Mapping[str, Any], inputs: Mapping[str, Any], device_class: str = "cpu"
) -> str:
    """Return the key of the artefact that a step leaves.

    Args:
        step: the step's name.
        version: the version of its function.
        params: resolved parameters, JSON values.
        inputs: role → digest or digests of what is read.
        device_class: compute dtype and device class.

    Returns:
        64 hexadecimal digits (sha256).
    """
    body = {"step": step, "version": version, "params": params, "inputs": inputs, "device": device_class}
    return hashlib.sha256(canonical_json(body).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(value: Any) -> Any:
    """Let read-only mappings and paths take part."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path):
        return value.as_posix()
    raise TypeError(f"{type(value).__name__} is not JSON and cannot take part in a key: {value!r:.80}")
