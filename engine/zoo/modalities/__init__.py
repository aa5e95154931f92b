"""Kinds of data, each declared in one file: nothing outside asks which one a zoo has. Free of torch at import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ZooError
from ...manifest import Manifest
from ...preparation import Preparation
from ..modality import FLOAT, Modality, TowerSize
from .images import ImageModality
from .texts import TextModality

MODALITIES: Mapping[str, Modality] = {modality.name: modality for modality in (ImageModality(), TextModality())}

__all__ = [
    "FLOAT",
    "MODALITIES",
    "Modality",
    "TowerSize",
    "modality_of",
    "of_config",
    "of_preparation",
    "only_images",
]


def modality_of(manifest: Manifest) -> Modality:
    """Return the kind of data that a zoo is of."""
    return MODALITIES[manifest.modality]


def of_config(config: Mapping[str, Any]) -> Modality:
    """Return the modality whose encoders a model config is of.

    Raises:
        ZooError: there is none.
    """
    found = next((modality for modality in MODALITIES.values() if modality.reads(config)), None)
    if found is None:
        raise ZooError(f"The model config with {', '.join(sorted(config))[:80]} is of no known kind of encoder.")
    return found


def only_images(manifest: Manifest, what: str) -> None:
    """Refuse what is known of images alone.

    Args:
        manifest: of the zoo.
        what: how the refusal begins, such as ``Experts are trained``.

    Raises:
        ZooError: the zoo is of another kind of data.
    """
    if manifest.modality != ImageModality.name:
        many = modality_of(manifest).many
        raise ZooError(f"{what} for zoos of images; '{manifest.name}' is one of {many}.")


def of_preparation(preparation: Preparation) -> Modality:
    """Return the modality whose samples are prepared by these settings."""
    return next(modality for modality in MODALITIES.values() if isinstance(preparation, modality.preparation))
