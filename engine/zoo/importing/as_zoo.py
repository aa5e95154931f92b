"""Shared steps of surveys of imports: what fails becomes a fault, and what was found is looked at as a zoo."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...errors import EngineError, SettingError
from ...types import Progress
from ..inspection.parts import inspect
from .architecture import Fault
from .found import Survey
from .staged import Staged

Stage = Callable[[Any, Path, Mapping[str, str]], Staged]


def attempt(found: Survey, action: Callable[[], Any]) -> Any:
    """Return what an action returns; an error becomes one of the survey's faults, and None is returned."""
    try:
        return action()
    except EngineError as error:
        found.faults.append(Fault(str(error), error.setting if isinstance(error, SettingError) else ""))
        return None


def inspect_as_zoo(found: Survey, places: Mapping[str, str], stage: Stage, progress: Progress) -> None:
    """Look at the zoo that this will be, and note what speaks against it.

    Args:
        found: a survey without faults; gets the findings.
        places: task → what the manifest names as its data.
        stage: writes the zoo's small files into an empty folder.
        progress: told how far it is.
    """
    with tempfile.TemporaryDirectory(prefix="mergelens-") as folder:
        staged = attempt(found, lambda: stage(found, Path(folder), places))
        for finding in inspect(staged, progress) if staged is not None else ():
            kept = found.warnings if finding.level == "warning" else found.notes
            if finding.level == "error":
                found.faults.append(Fault(finding.text))
            elif finding.text not in kept:
                kept.append(finding.text)
