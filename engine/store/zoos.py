"""Zoo folders outside the app that somebody has imported or opened: remembered as one small file each."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

from ..errors import StoreError
from ..mounts import here, there

FOLDER = "known-zoos"
MOST = 200


class KnownZoos:
    """Zoo folders that this store knows. A file for each, so that several processes need no lock."""

    def __init__(self, root: Path) -> None:
        self._folder = root / FOLDER

    def add(self, folder: Path) -> None:
        """Remember a zoo folder; once more moves it to the front. It stays whose it was.

        Raises:
            StoreError: the store cannot be written to.
        """
        self._keep(folder, time.time(), self.owner(folder))

    def own(self, folder: Path, person: str) -> None:
        """Say whom a zoo folder belongs to, which may be about to be made; this alone makes it no known zoo.

        Raises:
            StoreError: the store cannot be written to.
        """
        self._keep(folder, self._read(folder).get("added"), person)

    def owner(self, folder: Path) -> str:
        """Return the id of whom a zoo folder belongs to; empty for nobody who logs in."""
        return str(self._read(folder).get("person") or "")

    def forget(self, folder: Path) -> None:
        """Forget a zoo folder; the folder itself stays."""
        self._file(_folder_of(folder)).unlink(missing_ok=True)

    def list(self) -> list[Path]:
        """Return known folders that still hold a zoo, the latest first."""
        found = []
        for file in self._folder.glob("*.json") if self._folder.is_dir() else ():
            try:
                document = json.loads(file.read_text("utf-8"))
                found.append((float(document["added"]), Path(here(document["path"]))))
            except (OSError, ValueError, KeyError, TypeError):
                continue
        found.sort(key=lambda item: -item[0])
        return [path for _, path in found[:MOST] if os.access(path / "zoo.yaml", os.R_OK)]

    def _keep(self, folder: Path, added: float | None, person: str) -> None:
        path = _folder_of(folder)
        target = self._file(path)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps({"path": there(str(path)), "added": added, "person": person}), "utf-8")
            temporary.replace(target)
        except OSError as error:
            raise StoreError(f"The store {self._folder.parent} cannot be written to: {error.strerror}.") from error

    def _read(self, folder: Path) -> dict[str, Any]:
        try:
            found = json.loads(self._file(_folder_of(folder)).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _file(self, path: Path) -> Path:
        return self._folder / f"{hashlib.sha256(there(str(path)).encode()).hexdigest()[:24]}.json"


def _folder_of(place: Path) -> Path:
    """Return the folder of a zoo that is named by it or by its zoo.yaml, without links."""
    path = place.expanduser().resolve()
    return path.parent if path.name == "zoo.yaml" else path
