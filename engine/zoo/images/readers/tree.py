"""Files below a folder or inside a zip archive, seen the same way and checked before anything is read."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol

from ....archives import contents_of
from ....errors import UNREADABLE_ZIP, DataError
from ....store.digests import FileSet
from ..decoding import MAX_ENCODED_BYTES, SUFFIXES

MAX_FILES = 5_000_000
MAX_CONTENTS_BYTES = 512 * 2**20  # of the table of contents: a hundred bytes a file
MAX_TOTAL_BYTES = 256 * 2**30
MAX_RATIO = 200  # unpacked to packed bytes; images hardly shrink
RATIO_MATTERS_FROM = 2**20  # bytes
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".zst")
NAMED = 5  # names in a message


class Tree(Protocol):
    """Names of files and their content."""

    path: Path
    names: tuple[str, ...]  # sorted relative POSIX paths of image files
    others: tuple[str, ...]  # of other files

    def encoded(self, name: str) -> bytes | Path:
        """Return the content of a file, or where it lies."""

    def content(self) -> Path | FileSet:
        """Return the files whose content is digested."""


class FolderTree:
    """Image files below a folder. Symbolic links may not lead out of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._root = path.resolve()
        found = sorted(self._walk(path, ""))
        self.names = tuple(name for name in found if is_image(name))
        self.others = tuple(name for name in found if not is_image(name))

    def _walk(self, folder: Path, prefix: str) -> Iterator[str]:
        count = 0
        pending = [(str(folder), prefix)]
        while pending:
            place, before = pending.pop()
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or not self._is_inside(entry):
                        continue
                    if entry.is_dir():
                        if not entry.is_symlink():  # a link to a folder inside would show its files twice
                            pending.append((entry.path, f"{before}{entry.name}/"))
                        continue
                    count += 1
                    if count > MAX_FILES:
                        raise DataError(f"{self.path.name} holds more than {MAX_FILES:,} files.")
                    yield before + entry.name

    def _is_inside(self, entry: os.DirEntry[str]) -> bool:
        if entry.is_symlink() and not self._leads_inside(Path(entry.path)):
            place = Path(entry.path).relative_to(self.path.parent)
            raise DataError(f"{place} is a symbolic link that leads out of the folder. Copy the files into it.")
        return True

    def _leads_inside(self, link: Path) -> bool:
        try:
            return link.resolve().is_relative_to(self._root)
        except (OSError, RuntimeError):  # it leads to itself
            return False

    def encoded(self, name: str) -> Path:
        """Return the place of an image file."""
        return self.path / name

    def content(self) -> FileSet:
        """Return all image files."""
        return FileSet(self.path, self.names)


class ZipTree:
    """Image files inside a zip archive, read in place: nothing is ever unpacked by reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            check_contents(path, MAX_FILES, MAX_CONTENTS_BYTES)
            self._archive = zipfile.ZipFile(path)
            entries = check_archive(self._archive, path.name)
        except (OSError, ValueError, *UNREADABLE_ZIP) as error:
            raise DataError(f"{path.name} is damaged or no zip archive ({error}).") from error
        self.names = tuple(sorted(entries))
        self.others = ()

    def encoded(self, name: str) -> bytes:
        """Return the content of a file; its length and checksum are checked while it is read."""
        try:
            return self._archive.read(name)
        except Exception as error:  # zipfile, zlib and lzma raise many classes, some of them their own
            raise OSError(f"damaged inside {self.path.name}: {error}") from error

    def content(self) -> Path:
        """Return the archive."""
        return self.path


def is_image(name: str) -> bool:
    """Return whether a name ends as image files do."""
    return name.lower().endswith(SUFFIXES)


def check_contents(path: Path, most_files: int, most_bytes: int) -> None:
    """Refuse an archive whose table of contents alone would fill the memory.

    Raises:
        DataError: it lists more than so many entries, or in more bytes.
        BadZipFile: it has no table, or two.
    """
    with path.open("rb") as file:
        found = contents_of(file)
    if found is None:
        raise zipfile.BadZipFile("its table of contents is missing or damaged")
    count, size = found
    if count > most_files or size > most_bytes:
        raise DataError(
            f"{path.name} lists {count:,} entries in {size:,} bytes; at most {most_files:,} in {most_bytes:,} are read."
        )


def check_archive(archive: zipfile.ZipFile, title: str) -> dict[str, zipfile.ZipInfo]:
    """Check every entry of a zip archive of images before any of it is read.

    Args:
        archive: an open archive.
        title: what messages call it.

    Returns:
        Entries of image files by name. Folders and the notes that file managers leave are passed over.

    Raises:
        DataError: names that lead out of the archive, links, encryption, bombs, archives in the archive, files that
            are no images, two entries of one name. Nothing is written.
    """
    entries = [
        entry for entry in archive.infolist() if not entry.filename.endswith("/") and not _left_behind(entry.filename)
    ]
    if len(entries) > MAX_FILES:
        raise DataError(f"{title} holds {len(entries):,} files; at most {MAX_FILES:,} are read.")
    total = sum(entry.file_size for entry in entries)
    if total > MAX_TOTAL_BYTES:
        raise DataError(f"{title} would unpack to {total:,} bytes; at most {MAX_TOTAL_BYTES:,} are read.")
    found: dict[str, zipfile.ZipInfo] = {}
    strange, empty = [], []
    for entry in entries:
        _check_entry(entry, title)
        if entry.filename in found:
            raise DataError(f"{title} holds '{_said(entry.filename)}' twice. Pack it again.")
        if is_image(entry.filename) and not entry.file_size:
            empty.append(entry.filename)
        elif is_image(entry.filename):
            found[entry.filename] = entry
        else:
            strange.append(entry.filename)
    if strange:
        more = f" and {len(strange) - NAMED} more" if len(strange) > NAMED else ""
        raise DataError(
            f"{title} holds {len(strange)} files that are no images: "
            f"{', '.join(map(_said, strange[:NAMED]))}{more}. Pack folders of images only, one folder a class."
        )
    if empty:
        raise DataError(
            f"{title} holds {len(empty):,} files without content, such as '{_said(empty[0])}'. Pack it again."
        )
    if not found:
        raise DataError(f"{title} holds no images. Pack folders of images, one folder a class.")
    return found


def _check_entry(entry: zipfile.ZipInfo, title: str) -> None:
    name = entry.filename
    path = PurePosixPath(name)
    leads_out = not path.parts or path.is_absolute() or ".." in path.parts or ":" in path.parts[0]
    if leads_out or "\\" in name or "\0" in name:
        raise DataError(f"{title} holds '{_said(name)}', a name that leads out of the archive. It is not used.")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise DataError(f"{title} holds '{_said(name)}', a link or device. Pack plain files only.")
    if entry.flag_bits & 0x1:
        raise DataError(f"{title} is encrypted. Pack it without a password.")
    if name.lower().endswith(ARCHIVES):
        raise DataError(f"{title} holds another archive, '{_said(name)}'. Unpack that first.")
    if entry.file_size > MAX_ENCODED_BYTES:
        raise DataError(f"{title}: '{_said(name)}' has {entry.file_size:,} bytes; at most {MAX_ENCODED_BYTES:,}.")
    if entry.file_size > RATIO_MATTERS_FROM and entry.file_size > MAX_RATIO * max(entry.compress_size, 1):
        raise DataError(
            f"{title}: '{_said(name)}' unpacks to {entry.file_size / max(entry.compress_size, 1):,.0f} times its size, "
            "as no image does. It is not used."
        )


def _left_behind(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and (parts[0] == "__MACOSX" or parts[-1] in (".DS_Store", "Thumbs.db", "desktop.ini"))


def _said(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:120]
