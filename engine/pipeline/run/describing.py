"""What merged weights say about themselves, so that they can be used without the zoo they came from."""

from __future__ import annotations

from typing import Any

from ...zoo.encoders.backbone import architecture, preprocessing
from ...zoo.folder import Zoo

METADATA_KEY = "mergelens"
FORMAT = 1


def describe_model(zoo: Zoo) -> dict[str, Any]:
    """What is needed beside the weights to run a zoo's models, as JSON values."""
    return {
        "format": FORMAT,
        "architecture": architecture(zoo.folder, zoo.manifest),
        "preprocess": preprocessing(zoo.folder, zoo.manifest).model_dump(mode="json"),
    }
