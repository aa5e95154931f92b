"""Folders that lie elsewhere on this machine than on the engine's, as the mounts of a shared disk may.

A worker's ``MERGELENS_MOUNTS`` names them, as ``THEIRS=OURS`` joined by the system's separator of paths (``:``).
Requests, the run table and everything in the store hold the engine's paths; a worker translates what it opens, and
translates back what it writes down.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TypeVar

from .errors import StoreError

ENV = "MERGELENS_MOUNTS"
SQLITE = "sqlite:///"

T = TypeVar("T")


def here(value: T) -> T:
    """Return a value with the engine's paths replaced by this machine's.

    Args:
        value: a path, a text, or mappings, lists and tuples of them; texts that name no such folder stay as they are.

    Raises:
        StoreError: the setting cannot be read.
    """
    return _translated(value, mounts())


def there(value: T) -> T:
    """Return a value with this machine's paths replaced by the engine's, the reverse of :func:`here`."""
    return _translated(value, tuple((ours, theirs) for theirs, ours in mounts()))


def url_here(url: str) -> str:
    """Return the address of a run table; a file of SQLite's is looked for where this machine sees it."""
    scheme, found, path = url.partition(SQLITE)
    return f"{found}{here(path)}" if found and not scheme else url


def mounts() -> tuple[tuple[str, str], ...]:
    """Return the folders as pairs of the engine's path and this machine's.

    Raises:
        StoreError: the setting cannot be read.
    """
    return _parsed(os.environ.get(ENV, ""))


@lru_cache(maxsize=4)
def _parsed(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for entry in filter(None, text.split(os.pathsep)):
        theirs, equals, ours = (part.strip() for part in entry.partition("="))
        if not (equals and theirs.startswith("/") and Path(ours).is_absolute()):
            raise StoreError(
                f"{ENV} has the entry '{entry}'; expected THEIRS=OURS, two absolute paths of the same folder: as the "
                "engine's machine sees it, and as this one does."
            )
        pairs.append((theirs.rstrip("/") or "/", ours.rstrip("/") or "/"))
    return tuple(pairs)


def _translated(value: T, pairs: tuple[tuple[str, str], ...]) -> T:
    if not pairs:
        return value
    if isinstance(value, str):
        return _moved(value, pairs)
    if isinstance(value, Path):
        return type(value)(_moved(str(value), pairs))
    if isinstance(value, dict):
        return {_translated(name, pairs): _translated(entry, pairs) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_translated(entry, pairs) for entry in value)
    return value


def _moved(text: str, pairs: tuple[tuple[str, str], ...]) -> str:
    """Replace the beginning of a path, by the pair that says most of it."""
    inside = [pair for pair in pairs if text == pair[0] or text.startswith(pair[0].rstrip("/") + "/")]
    if not inside:
        return text
    before, after = max(inside, key=lambda pair: len(pair[0]))
    rest = text[len(before) :].lstrip("/")
    return str(PurePosixPath(after, rest)) if rest else after
