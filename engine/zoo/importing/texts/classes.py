"""Names of a text expert's classes, by what lies beside model and texts. Free of torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..documents import read_json

GENERIC = re.compile(r"LABEL_\d+")


def class_names(config: Mapping[str, Any], place: str, brought: Sequence[str], count: int) -> list[str]:
    """Return names of classes in the classifier's order: those beside the texts, of its config, of the data, numbers.

    Args:
        config: of the expert.
        place: of its texts, '' where there are none.
        brought: the data's own names.
        count: of classes.
    """
    classes = described_classes(place) or stated_classes(config)
    if not classes or all(GENERIC.fullmatch(name) for name in classes):
        classes = list(brought) if len(brought) == count else classes
    return classes or [f"class {number}" for number in range(count)]


def described_classes(place: str) -> list[str]:
    """Return the class names of a description beside the texts."""
    if not place:
        return []
    path = Path(place).expanduser()
    found = read_json(path.parent / f"{path.stem if path.is_file() else path.name}.json").get("class_names")
    return [str(name) for name in found] if isinstance(found, list) else []


def stated_classes(config: Mapping[str, Any]) -> list[str]:
    """Return the class names of a config in the order of its labels."""
    named = config.get("id2label")
    if not isinstance(named, dict):
        return []
    try:
        return [str(named[key]) for key in sorted(named, key=int)]
    except ValueError:
        return []
