"""Sections of docstrings, read from source files without importing them (which would import torch)."""

from __future__ import annotations

import ast
import re
import threading
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
DEPARTURE = re.compile(r"^Departure:\s*(.*?)(?=\n\s*\n|\n[A-Z][a-z]+:|\Z)", re.MULTILINE | re.DOTALL)

_parsing = threading.Lock()  # Python 3.11's parser stumbles over a collection of garbage where two threads parse


@cache
def departure_of(function: str) -> str:
    """Return the ``Departure:`` section of a function's or class's docstring as one paragraph; '' where it has none.

    Args:
        function: path relative to the package, e.g. ``.merging.ties:ties``.

    Raises:
        LookupError: the file defines no such function or class.
    """
    module, _, name = function.partition(":")
    path = PACKAGE.joinpath(*module.strip(".").split(".")).with_suffix(".py")
    with _parsing:
        found = DEPARTURE.search(_docstrings(path)[name])
    if found is None:
        return ""
    text = " ".join(found[1].split()).replace("``", "`")
    return text[:1].upper() + text[1:]


@cache
def _docstrings(path: Path) -> dict[str, str]:
    """Return name → docstring of every function and class at the top of a file."""
    nodes = ast.parse(path.read_text("utf-8")).body
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name: ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)}
