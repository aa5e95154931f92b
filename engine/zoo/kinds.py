"""The kinds of data whose encoders the catalog's methods know. Free of torch at import."""

from __future__ import annotations

from .modalities import MODALITIES


def known_kinds() -> str:
    """Return the kinds of data whose encoders every method of the catalog knows, in words."""
    return ", ".join(modality.many for modality in MODALITIES.values())
