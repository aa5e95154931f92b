"""A backbone's architecture and preparation, of whatever modality. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...manifest import Manifest
from ...preparation import Preparation
from ..modalities import FLOAT, TowerSize, modality_of, of_config

__all__ = ["FLOAT", "TowerSize", "architecture", "preprocessing", "tower_size", "width_of"]


def architecture(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Return the model config of a zoo's backbone.

    Raises:
        ZooError: the config is missing, unreadable or names no known architecture.
    """
    return modality_of(manifest).architecture(folder, manifest)


def preprocessing(folder: Path, manifest: Manifest) -> Preparation:
    """Return how a zoo's samples become tensors.

    Raises:
        ZooError: what is needed for it is missing.
    """
    return modality_of(manifest).preprocessing(folder, manifest)


def tower_size(config: Mapping[str, Any]) -> TowerSize | None:
    """Count parameters and work of a config's transformer; None for encoders of another kind."""
    return of_config(config).size(config)


def width_of(config: Mapping[str, Any]) -> int:
    """Return the dimensions of the features that a config's encoder makes."""
    return of_config(config).width(config)
