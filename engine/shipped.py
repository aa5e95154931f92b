"""Files that come with the program: in a checkout beside it, in an installed package inside it."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _place(installed: str, checkout: str) -> Path:
    inside = _PACKAGE / installed
    return inside if inside.is_dir() else _PACKAGE.parent / checkout


ASSETS = _place("assets", "assets")  # zoos, data sets, experiments, lessons, example runs
REFERENCES = _place("reference", "tests/reference")  # numbers of official implementations
