"""JSON documents beside weights, and what they say of a model before it is opened. Free of torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, EngineError
from ..modalities import USUAL, Modality, of_published

MAX_JSON_BYTES = 5_000_000
CONFIG = "config.json"


def read_json(path: Path, most: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return a JSON object of at most so many bytes; empty where there is no such file.

    Raises:
        CheckpointError: too large, or not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > most:
            raise CheckpointError(f"{path.name} has more than {most:,} bytes; it is no model config.")
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {str(error)[:100]}.") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} holds a {type(document).__name__}; a JSON object is expected.")
    return document


def config_beside(path: Path | str) -> dict[str, Any]:
    """Return the config of a model folder, or beside a file of weights; empty where there is none.

    Raises:
        CheckpointError: it cannot be read.
    """
    place = Path(path).expanduser()
    return read_json((place if place.is_dir() else place.parent) / CONFIG)


def kind_of_base(base: Path | str) -> Modality:
    """Return the kind of data of a base that somebody brings, by the config beside it; the usual one without."""
    try:
        return of_published(config_beside(base))
    except EngineError:
        return USUAL
