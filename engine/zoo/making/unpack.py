"""Unpacking a zip of class folders into a zoo: everything is checked first, and all of it appears or nothing."""

from __future__ import annotations

import re
import secrets
import shutil
import zipfile
from pathlib import Path

from ...errors import UNREADABLE_ZIP, DataError
from ...manifest import SAFE_NAME, Task
from ...types import Progress
from ..brought_task import check_room
from ..images.data import ImageData, corrupt_message, find_corrupt
from ..images.readers.folders import read_folder, read_zip
from ..images.readers.tree import check_archive

CHUNK = 2**20


def unpack(archive: Path, zoo: Path, name: str, progress: Progress) -> Path:
    """Unpack a zip of class folders to ``data/NAME`` of a zoo's folder.

    Args:
        archive: the zip; see :func:`engine.zoo.images.readers.tree.check_archive` for what is refused.
        zoo: the zoo's folder.
        name: of the task; becomes the folder's name.
        progress: told the share of files.

    Returns:
        The new folder.

    Raises:
        DataError: what is wrong with the archive or its images; nothing is left behind then.
    """
    target = zoo / "data" / name
    if not re.match(SAFE_NAME, name):
        raise DataError(f"'{name}' cannot name a task; letters, digits, '-', '_' and '.' can.")
    if target.exists():
        raise DataError(f"{target} exists already; nothing was unpacked. Choose another name, or remove it.")
    if not archive.is_file():
        raise DataError(f"There is no file {archive}.")
    read_zip(archive)  # the layout is that of class folders
    making = target.with_name(f".{name}.{secrets.token_hex(6)}.tmp")
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = check_archive(opened, archive.name)
            check_room(zoo, sum(entry.file_size for entry in entries.values()))
            for number, (inside, entry) in enumerate(entries.items()):
                _write(opened, entry, making / inside)
                progress((number + 1) / len(entries), f"{number + 1:,} of {len(entries):,} files")
        source = read_folder(making)
        data = ImageData(Task(name=name, domain="in", classes=("a", "b")), source)
        reasons = [reason for split in source.lengths for _, reason in find_corrupt(data, split)]
        if reasons:
            raise DataError(corrupt_message(data.task, sum(source.lengths.values()), reasons))
        making.rename(target)
    except (OSError, EOFError, RuntimeError, *UNREADABLE_ZIP) as error:
        raise DataError(f"{archive.name} cannot be unpacked to {target}: {error}.") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return target


def _write(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> None:
    """Write one file, never more bytes than its entry says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    left = entry.file_size
    with archive.open(entry) as source, path.open("xb") as target:
        while chunk := source.read(CHUNK):
            left -= len(chunk)
            if left < 0:
                raise DataError(f"'{entry.filename}' holds more bytes than the archive says. It is not used.")
            target.write(chunk)
