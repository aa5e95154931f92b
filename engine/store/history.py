"""The store's own record of its runs: one small file each, from which a lost run table is made again.

The run table is the truth while it is there. A file is written when a run is submitted, ends, or is renamed or
deleted; it holds what its row needs to come back, not what changes from second to second.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .files import make_folder
from .run import RECORDED, Run

FOLDER = "runs"
FORMAT = 1

logger = logging.getLogger(__name__)


class History:
    """The folder ``runs/`` of a store."""

    def __init__(self, root: Path) -> None:
        self._root, self._folder = root, root / FOLDER

    def keep(self, runs: Iterable[Run]) -> None:
        """Write down what the rows say. A full disk does not undo what the table has: it is said in the log."""
        for run in runs:
            document = {"format": FORMAT, **{name: getattr(run, name) for name in RECORDED}}
            target = self._folder / f"{run.id}.json"
            temporary = target.with_name(f".{run.id}.{secrets.token_hex(4)}")
            try:
                make_folder(self._folder, self._root)
                temporary.write_text(json.dumps(document, ensure_ascii=False), "utf-8")
                temporary.replace(target)
            except OSError as error:
                logger.warning("Run %s could not be put on record in %s: %s", run.id, self._folder, error)
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)

    def forget(self, runs: Iterable[str]) -> None:
        """Delete the files of runs that were purged."""
        for run in runs:
            (self._folder / f"{run}.json").unlink(missing_ok=True)

    def count(self) -> int:
        """Return how many runs are on record."""
        try:
            return sum(entry.name.endswith(".json") for entry in os.scandir(self._folder))
        except OSError:
            return 0

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return what is on record of each run, oldest first; files that cannot be read are named in the log."""
        for file in sorted(self._folder.glob("*.json")) if self._folder.is_dir() else ():
            try:
                document = json.loads(file.read_text("utf-8"))
                if document["format"] == FORMAT and document["id"] == file.stem:
                    yield {name: document[name] for name in RECORDED if name != "person"} | {
                        "person": document.get("person", "")  # records of earlier versions belong to nobody
                    }
                    continue
                reason = "it is of another form"
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                reason = f"{type(error).__name__}: {error}"
            logger.warning("The record %s cannot be read and is left out: %s", file, reason)
