"""The kinds of data whose encoders a method of the catalog knows. Free of torch at import."""

from __future__ import annotations

from ..catalog.row import Row
from .modalities import MODALITIES, Modality


def kinds_of(row: Row) -> str:
    """Return the kinds of data whose encoders a method of the catalog knows, in words."""
    return ", ".join(modality.many for modality in MODALITIES.values() if _knows(row, modality))


def _knows(row: Row, modality: Modality) -> bool:
    return modality.made or "teacher" not in row.needs
