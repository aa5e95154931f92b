"""Writing an import as a zoo folder: tensor by tensor, into a temporary folder that is renamed when it is whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ZooError
from ...manifest import read_manifest
from ...store.outputs import new_folder
from ...types import Progress
from ...weights import write_weights
from ..metadata import header_text, model_document
from .found import Row, Survey
from .request import ImportRequest
from .staged import file_of, stage, stored
from .survey import survey
from .texts.found import TextSurvey
from .texts.staged import write_texts

RECORD = "import.json"


def import_zoo(request: ImportRequest, progress: Progress) -> dict[str, Any]:
    """Convert checkpoints to a zoo folder.

    Args:
        request: what to convert, and where to.
        progress: told how far it is; what it raises stops the import and leaves nothing behind.

    Returns:
        What was recognised, left out and warned about, as :meth:`.found.Survey.to_json` gives it.

    Raises:
        ZooError: everything that is wrong, one line each; nothing was written then.
    """
    found = survey(request, lambda fraction, message="": progress(0.4 * fraction, message))
    if found.faults:
        raise ZooError("\n".join(fault.text for fault in found.faults))
    if isinstance(found, TextSurvey):
        return write_texts(found, lambda fraction, message="": progress(0.4 + 0.6 * fraction, message))
    with new_folder(request.folder) as folder:
        stage(found, folder, _bring(found, folder))
        _write_models(found, folder, progress)
        read_manifest(folder)
        (folder / RECORD).write_text(json.dumps(found.to_json(), indent=1, ensure_ascii=False), "utf-8")
    progress(1.0, "Done")
    return found.to_json()


def read_record(request: ImportRequest) -> dict[str, Any] | None:
    """Return the summary of this very wish where it has been carried out already; None where it has not."""
    try:
        record = json.loads((request.folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("token") == request.token else None


def _write_models(found: Survey, folder: Path, progress: Progress) -> None:
    (folder / "experts").mkdir()
    total = max(found.needed, 1)
    done = 0
    for row in found.rows:
        if row.role == "head":
            continue

        def report(fraction: float, message: str = "", row: Row = row, done: int = done) -> None:
            progress(0.4 + 0.55 * (done + fraction * row.bytes) / total, f"{row.name}: {message}")

        metadata = {"converted_from": row.layout, "file": Path(row.path).name, **_described(found)}
        write_weights(folder / file_of(row), stored(found, row), None, report, metadata)
        done += row.bytes


def _described(found: Survey) -> Mapping[str, str]:
    architecture = found.architecture
    if architecture is None or architecture.preprocess is None:
        raise ZooError("The base was not recognised.")
    return header_text(model_document(architecture.config, architecture.preprocess.model_dump(mode="json")))


def _bring(found: Survey, folder: Path) -> dict[str, str]:
    """Copy the tasks' images into the zoo; sources elsewhere are only named."""
    places = {task.name: task.place for task in found.tasks if task.place}
    for task in found.tasks:
        if task.images is None:
            continue
        path = task.images.path
        if path.is_symlink() or any(item.is_symlink() for item in path.rglob("*")):
            raise ZooError(f"The data of '{task.name}' hold a symbolic link, which is not followed. Copy the files.")
        try:
            places[task.name] = task.images.bring(folder)
        except (OSError, shutil.Error) as error:
            reason = getattr(error, "strerror", None) or "a file in it cannot be read"
            raise ZooError(f"The data of '{task.name}' cannot be copied from {path.name}: {reason}.") from error
    return places
