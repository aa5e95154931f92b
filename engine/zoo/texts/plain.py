"""Configs of published models without names of code. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PLAIN = (str, int, float, bool, type(None))


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a config that are numbers, words and lists or tables of them; names of code are left out."""
    return {
        name: value
        for name, value in config.items()
        if name not in ("auto_map", "custom_pipelines", "quantization_config", "_name_or_path", "transformers_version")
        and (isinstance(value, PLAIN) or (isinstance(value, list | dict) and _is_plain(value)))
    }


def _is_plain(value: Any, depth: int = 0) -> bool:
    if isinstance(value, list):
        return depth < 3 and all(_is_plain(part, depth + 1) for part in value)
    if isinstance(value, dict):
        return depth < 3 and all(isinstance(k, str) and _is_plain(part, depth + 1) for k, part in value.items())
    return isinstance(value, PLAIN)
