"""Findings of an import of text models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...texts.families import Family, family_of
from ...texts.tables import TextTable
from ..found import Survey
from .models import Classifier
from .tokenizers import Tokens

LENGTH = 128  # tokens a text, where nobody says otherwise


@dataclass
class TextTask:
    """One task of an import of text models."""

    name: str
    entry: dict[str, Any]
    classifier: Classifier | None = None
    table: TextTable | None = None


@dataclass
class TextSurvey(Survey):
    """Everything that was found of text models."""

    config: dict[str, Any] = field(default_factory=dict)  # the base's, checked
    stated: dict[str, Any] = field(default_factory=dict)  # the base's, as it was brought
    tokens: Tokens | None = None
    length: int = LENGTH
    texts: list[TextTask] = field(default_factory=list)

    @property
    def family(self) -> Family:
        """Return the base's family."""
        return family_of(self.config)

    def to_json(self) -> dict[str, Any]:
        """Return what pages and the command line show."""
        return {**super().to_json(), "architecture": self.label}

    @property
    def label(self) -> str:
        """Return the base's architecture for people."""
        if not self.config:
            return ""
        size = {name: self.family.size(self.config, name) for name in ("layers", "width")}
        return f"{self.family.title}, {size['layers']} blocks of width {size['width']}"
