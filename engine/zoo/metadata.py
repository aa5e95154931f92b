"""The header in which weights describe themselves, so that they can be used without the zoo they came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..types import Weights
from .encoders.architecture import architecture, preprocessing
from .folder import Zoo

METADATA_KEY = "mergelens"
FORMAT = 1


def describe_model(zoo: Zoo) -> dict[str, Any]:
    """Return what is needed beside the weights to run a zoo's models, as JSON values."""
    return model_document(
        architecture(zoo.folder, zoo.manifest), preprocessing(zoo.folder, zoo.manifest).model_dump(mode="json")
    )


def model_document(config: Mapping[str, Any], preprocess: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same for an open_clip model config and a preprocessing."""
    return {"format": FORMAT, "architecture": dict(config), "preprocess": dict(preprocess)}


def header_text(document: Mapping[str, Any]) -> dict[str, str]:
    """Return a safetensors header's free text that holds such a document."""
    return {METADATA_KEY: json.dumps(document, sort_keys=True)}


def read_document(weights: Weights) -> dict[str, Any]:
    """Return what weights say of themselves; empty where they say nothing that can be read."""
    try:
        found = json.loads(getattr(weights, "metadata", {}).get(METADATA_KEY, "null"))
    except (ValueError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("format") == FORMAT else {}
