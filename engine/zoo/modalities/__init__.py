"""Kinds of data, each declared in one file: nothing outside asks which one a zoo has. Free of torch at import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ...errors import ZooError
from ...manifest import Manifest
from ...preparation import Preparation
from ..modality import FLOAT, Modality, TowerSize
from .images import ImageModality
from .texts import TextModality

MODALITIES: Mapping[str, Modality] = {modality.name: modality for modality in (ImageModality(), TextModality())}
USUAL: Modality = MODALITIES[ImageModality.name]  # of zoos and documents that do not say

__all__ = [
    "FLOAT",
    "MODALITIES",
    "USUAL",
    "Modality",
    "TowerSize",
    "load",
    "modality_of",
    "of_config",
    "of_preparation",
    "of_published",
    "only_alike",
    "only_pictured",
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


def of_published(config: Mapping[str, Any]) -> Modality:
    """Return the kind of data of a brought model by the config beside it; the usual one where none claims it."""
    return next((modality for modality in MODALITIES.values() if modality.claims(config)), USUAL)


def only_alike(own: Manifest, other: Manifest, what: str) -> None:
    """Refuse a model of another zoo whose data are of another kind.

    Args:
        own: the zoo that is worked on.
        other: the zoo that the model is taken of.
        what: how the refusal begins, such as ``Teachers are taken``.

    Raises:
        ZooError: they are of different kinds.
    """
    if own.modality != other.modality:
        ours, theirs = modality_of(own).many, modality_of(other).many
        raise ZooError(
            f"{what} from zoos of the same kind of data; '{own.name}' is one of {ours}, '{other.name}' one of {theirs}."
        )


def only_pictured(manifest: Manifest, what: str) -> None:
    """Refuse what is known only of samples that are pictures.

    Args:
        manifest: of the zoo.
        what: how the refusal begins, such as ``Tokens are drawn``.

    Raises:
        ZooError: the zoo is of another kind of data.
    """
    modality = modality_of(manifest)
    if modality.shown != "picture":
        known = " and ".join(other.many for other in MODALITIES.values() if other.shown == "picture")
        raise ZooError(
            f"{what} for zoos of {known}; '{manifest.name}' is one of {modality.many}, which can be run and checked."
        )


def load(place: str) -> Callable[..., Any]:
    """Import a function that a modality names, such as its exporter. May import torch."""
    module, _, name = place.partition(":")
    return getattr(import_module(module, package=__name__.split(".", maxsplit=1)[0]), name)


def of_preparation(preparation: Preparation) -> Modality:
    """Return the modality whose samples are prepared by these settings."""
    return next(modality for modality in MODALITIES.values() if isinstance(preparation, modality.preparation))
