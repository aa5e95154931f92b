"""Room in the store that a run takes, alone and together with others."""

from __future__ import annotations

from dataclasses import dataclass

from .artefacts import Store
from .files import artefact, read_record
from .run import Run


@dataclass(frozen=True)
class Usage:
    """Bytes of the artefacts that a run refers to."""

    total: int
    own: int  # of artefacts that no other run refers to: freed when this run alone goes


def usage_of(store: Store, run: Run) -> Usage:
    """Add up what a run takes. Artefacts that lie in the store twice under hard links count for each.

    Args:
        store: where it is.
        run: its row; runs inside it (a sweep's) count as part of it.
    """
    keys = set(references_of(run))
    inside = {run.id, *(row.id for row in store.runs.list(parent=run.id, limit=1_000_000))}
    others = store.runs.references(without=inside)
    sizes = {key: size_of_artefact(store, key) for key in keys}
    return Usage(sum(sizes.values()), sum(size for key, size in sizes.items() if key not in others))


def references_of(run: Run) -> tuple[str, ...]:
    """Return the keys of the artefacts that a run refers to; a folder that a command line wrote to is none."""
    return tuple(dict.fromkeys(key for key in (*run.step_keys, run.result) if key and _is_key(key)))


def size_of_artefact(store: Store, key: str) -> int:
    """Return the bytes of one artefact by its record, 0 when it is not there."""
    folder = store.folder_of(key)
    record = read_record(folder)
    return artefact(folder, record).size if record is not None else 0


def _is_key(text: str) -> bool:
    return len(text) >= 8 and all(letter in "0123456789abcdef" for letter in text)
