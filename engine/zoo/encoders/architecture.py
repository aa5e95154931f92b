"""A backbone's architecture and preparation, of whatever modality. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...manifest import Manifest
from ...preparation import Preparation
from ..modalities import FLOAT, TowerSize, modality_of, of_config

__all__ = ["FLOAT", "TowerSize", "architecture", "difference", "preprocessing", "tower_size", "unlike", "width_of"]
VOCABULARY = "vocabulary.json"  # of a text encoder that reads words; beside the model config


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


def difference(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Say in what the encoders of two configs differ first; '' where they have one architecture.

    Text encoders beside image encoders do not count.
    """
    for part in sorted({*own, *theirs} - {"text_cfg"}):
        one, two = own.get(part), theirs.get(part)
        if one == two:
            continue
        if not isinstance(one, Mapping) or not isinstance(two, Mapping):
            return f"its `{part}` is {two}, the zoo's {one}"
        key = next(key for key in sorted({*one, *two}) if one.get(key) != two.get(key))
        return f"its `{part}.{key}` is {two.get(key)}, the zoo's {one.get(key)}"
    return ""


def unlike(zoo: Path, own: Manifest, place: Path, other: Manifest) -> str:
    """Say why experts of a zoo cannot start from another zoo's base, and which they can; '' where they can.

    Args:
        zoo: its folder.
        own: its manifest.
        place: the other zoo's folder.
        other: the other zoo's manifest.

    Raises:
        ZooError: what is needed to tell is missing.
    """
    if reason := difference(architecture(zoo, own), architecture(place, other)):
        return f"{reason}. Choose a zoo of the same architecture."
    if reason := modality_of(own).misread(preprocessing(zoo, own), preprocessing(place, other)):
        return f"{reason}. Choose a zoo of the same vocabulary."
    return ""


def width_of(config: Mapping[str, Any]) -> int:
    """Return the dimensions of the features that a config's encoder makes."""
    return of_config(config).width(config)
