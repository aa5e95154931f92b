"""The exceptions people see.

Every message says what failed, what was found, what was expected and what to do. The command line prints it and
exits with 1; pages show it in place; nothing else is ever shown as an error.
"""

from __future__ import annotations

import difflib
import zipfile
from collections.abc import Iterable

MOST_NAMES = 80
MOST_CHARACTERS = 4000  # of a message; names in damaged files may be of any length
# What zipfile raises of an archive: it is damaged, or of a version or compression that zipfile does not implement.
UNREADABLE_ZIP = (zipfile.BadZipFile, NotImplementedError)


class EngineError(Exception):
    """Base of every error that is meant to be read by a person; what is too long to read is cut in the middle."""

    def __init__(self, *args: object) -> None:
        """Take a message, as every exception does."""
        super().__init__(*(_readable(part) if isinstance(part, str) else part for part in args))


class RecipeError(EngineError):
    """A recipe that cannot be run as written."""


class ZooError(EngineError):
    """A zoo folder or its manifest is not usable."""


class SettingError(ZooError):
    """A setting of a new zoo that is missing or cannot be used."""

    def __init__(self, message: str, setting: str = "") -> None:
        """Take a message and the setting's name in the request."""
        super().__init__(message)
        self.setting = setting


class CheckpointError(EngineError):
    """A weights file that is missing, damaged, unsafe or of another architecture."""


class DataError(EngineError):
    """Images or labels that cannot be used."""


class MergeError(EngineError):
    """A merge method that cannot be carried out on these experts."""


class AlignmentError(EngineError):
    """Networks that cannot be aligned, or whose function an alignment has changed."""


class CalibrationError(EngineError):
    """A calibrator that cannot be trained or applied."""


class UnpairedFeatures(CalibrationError):
    """Two feature matrices whose rows are not the same inputs."""


class ReferenceFolderError(EngineError):
    """A folder of reference numbers that cannot be read."""


class StoreError(EngineError):
    """The store or the run table is not usable."""


class DiskFull(StoreError):
    """The disk of the store has no room left; work goes on when it has."""

    needed = 0  # bytes that have to be free before it is worth another try


class UploadError(StoreError):
    """A file from a browser that is not taken."""


class Cancelled(EngineError):
    """Somebody asked for this work to stop."""


def nearest(name: str, options: Iterable[str]) -> str:
    """Return a hint that names the closest valid option, or lists the options when none is close.

    Args:
        name: what was given.
        options: what would have been valid.

    Returns:
        A sentence such as ``Did you mean 'scaling'?``.
    """
    known = sorted(options)
    name = name[:200]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"Did you mean '{close[0]}'?"
    listed = ", ".join(known[:MOST_NAMES]) + (f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else "")
    return f"Valid names: {listed}." if known else "No names are valid here."


def _readable(message: str) -> str:
    half = MOST_CHARACTERS // 2
    return message if len(message) <= MOST_CHARACTERS else f"{message[:half]} … {message[-half:]}"
