"""Files that people send from a browser: written as they come, resumed by their content, kept once, for some days.

Layout below ``uploads/`` of a store::

    parts/SHA256-SIZE       what has come so far of a file
    whole/SHA256            files that came whole and are what was announced
    FOLDER/…                what one visitor brought: hard links to ``whole/``, under names made safe
    owners/FOLDER           the id of who brought it, where people log in; their parts and files are kept apart

A folder's name is the digest of its tray's, so that paths, which many read, give nobody the right to put files there.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from ..errors import DiskFull, UploadError
from .people import Settings

FOLDER = "uploads"
ENV_LIMIT = "MERGELENS_MAX_UPLOAD_GB"
LIMIT_GB = 8.0  # of one file; a whole CLIP ViT-H/14 in single precision has 3.9
SPARE = 2 * 2**30  # bytes of the disk that no upload takes
MOST_FILES = 2000  # of one visitor
WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")
BESIDE = (".json", ".txt", ".model")  # configs, words of a tokenizer
DATA = (".npz", ".parquet", ".zip", ".jsonl", ".csv", ".tsv")
SUFFIXES = (*WEIGHTS, *BESIDE, *DATA)
PART_HOURS = 24.0  # that an interrupted upload may be gone on with
TRAY_DAYS = 7.0  # that files stay after the last one came
PIECE = 2**20
TRAY = re.compile(r"[0-9a-f]{24}")  # also a folder's name
DIGEST = re.compile(r"[0-9a-f]{64}")


class Uploads:
    """The uploads of a store. Every method may be called from any thread."""

    def __init__(self, root: Path) -> None:
        self._root = root / FOLDER
        self._parts, self._whole, self._owners = (self._root / name for name in ("parts", "whole", "owners"))
        self._busy: set[str] = set()  # files that somebody writes to

    def new_tray(self, person: str = "") -> str:
        """Make an empty folder for one visitor; returns its tray, which is the right to put files into it.

        Args:
            person: id of the visitor, where people log in.
        """
        self.sweep()
        tray = secrets.token_hex(12)
        name = folder_name(tray)
        if person:
            self._owners.mkdir(parents=True, exist_ok=True)
            (self._owners / name).write_text(person, "utf-8")
        (self._root / name).mkdir(parents=True)
        return tray

    def folder(self, tray: str, person: str | None = None) -> Path | None:
        """Return the folder of a visitor's files; None where there is none (any more).

        Args:
            tray: the visitor's.
            person: their id; another's folder counts as none.
        """
        folder = self._named(folder_name(tray)) if TRAY.fullmatch(tray) else None
        return folder if folder and person in (None, self._owner(folder)) else None

    def bytes_of(self, person: str) -> int:
        """Return the bytes that have come from somebody who logs in, and are still kept."""
        mark = _mark(person)
        kept = [path for place in (self._parts, self._whole) for path in _entries(place)]
        return sum(_size(path) for path in kept if mark and path.name.startswith(mark))

    def offer(self, tray: str, name: str, size: int, sha256: str) -> int:
        """Announce a file. One that is known by its content is put into the folder at once.

        Args:
            tray: the visitor's.
            name: the file's name or relative path, as the browser says it.
            size: bytes.
            sha256: of the whole file, in hexadecimal digits.

        Returns:
            Bytes that need not be sent: ``size`` when the file is there.

        Raises:
            UploadError: the file is not taken, with the reason.
            DiskFull: there is no room for it.
        """
        folder = self._opened(tray)
        place = folder / safe_path(name)
        _check(size, sha256)
        owner = self._owner(folder)
        known = self._content(owner, sha256)
        if known.is_file() and known.stat().st_size == size:
            self._put(known, place, folder)
            return size
        part = self._part(owner, sha256, size)
        came = _size(part)
        self._check_room(owner, size - came, place.name)
        if came == 0:
            part.parent.mkdir(parents=True, exist_ok=True)
            part.touch()
        return came

    @contextmanager
    def append(self, tray: str, sha256: str, size: int, offset: int) -> Iterator[Callable[[bytes], None]]:
        """Take the next bytes of an announced file, to be written as they come.

        Args:
            tray: the visitor's.
            sha256: of the whole file.
            size: of the whole file.
            offset: the place of the first byte; what has come so far ends there.

        Raises:
            UploadError: the file was not announced, the offset is another, somebody else sends it at the moment, or
                more bytes come than were announced.
            DiskFull: there is no room for what is still to come.
        """
        owner = self._owner(self._opened(tray))
        _check(size, sha256)
        part = self._part(owner, sha256, size)
        if part.name in self._busy:
            raise UploadError("This file is being sent from another window. Wait, or close that one.")
        self._busy.add(part.name)
        try:
            came = part.stat().st_size if part.is_file() else -1
            if came != offset:
                raise UploadError(
                    f"{max(came, 0):,} bytes of this file are here; the next were said to be at {offset:,}."
                )
            self._check_room(owner, size - came, "the file")
            with part.open("ab") as stream:
                yield lambda piece: _write(stream, piece, size)
        finally:
            self._busy.discard(part.name)

    def finish(self, tray: str, sha256: str, size: int) -> int:
        """Look at what has come of a file: one that is complete is checked and kept.

        Args:
            tray: the visitor's.
            sha256: of the whole file.
            size: of the whole file.

        Returns:
            Bytes that are here.

        Raises:
            UploadError: its content is not what was announced; it is removed.
        """
        owner = self._owner(self._opened(tray))
        part = self._part(owner, sha256, size)
        came = _size(part)
        if came < size:
            return came
        with part.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != sha256:
            part.unlink(missing_ok=True)
            raise UploadError("What came is not the file that was announced; it was removed. Send it once more.")
        self._whole.mkdir(parents=True, exist_ok=True)
        part.replace(self._content(owner, sha256))
        return size

    def keep(self, folder: str, name: str, files: Sequence[Path]) -> Path:
        """Put files of this machine into a folder of a visitor's; returns that folder.

        Args:
            folder: name of the visitor's own.
            name: of the folder, made safe.
            files: linked where the disk allows it, else copied.
        """
        target = self._there(self._named(folder)) / _plain(name)
        target.mkdir(exist_ok=True)
        for file in files:
            _link(file.resolve(), target / file.name)
        return target

    def remove(self, folder: str, path: Path) -> None:
        """Remove a file or folder from the visitor's of that name, and contents that nobody holds any more."""
        own = self._there(self._named(folder))
        if not path.absolute().is_relative_to(own) or path == own:
            raise UploadError("Only uploaded files are removed here.")
        gone = {file.stat().st_ino for file in (path, *path.rglob("*")) if file.is_file()}
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        for content in _entries(self._whole):
            if _links(content) == 1 and content.stat().st_ino in gone:
                content.unlink(missing_ok=True)

    def sweep(self, now: float | None = None) -> None:
        """Remove interrupted uploads, old files, and contents that no folder holds any more.

        Args:
            now: seconds since the epoch; default the clock's.
        """
        now = time.time() if now is None else now
        for part in _entries(self._parts):
            if part.name not in self._busy and _older(part, now - 3600 * PART_HOURS):
                part.unlink(missing_ok=True)
        for tray in _entries(self._root):
            if TRAY.fullmatch(tray.name) and _older(tray, now - 86_400 * TRAY_DAYS):
                shutil.rmtree(tray, ignore_errors=True)
        for owner in _entries(self._owners):
            if not self._named(owner.name) and _older(owner, now - 3600 * PART_HOURS):
                owner.unlink(missing_ok=True)
        for content in _entries(self._whole):
            if _older(content, now - 3600 * PART_HOURS) and _links(content) == 1:
                content.unlink(missing_ok=True)

    def _part(self, owner: str, sha256: str, size: int) -> Path:
        return self._parts / f"{_mark(owner)}{sha256}-{size}"

    def _content(self, owner: str, sha256: str) -> Path:
        return self._whole / f"{_mark(owner)}{sha256}"

    def _named(self, name: str) -> Path | None:
        folder = self._root / name
        return folder if TRAY.fullmatch(name) and folder.is_dir() else None

    def _opened(self, tray: str) -> Path:
        return self._there(self.folder(tray))

    @staticmethod
    def _there(folder: Path | None) -> Path:
        if folder is None:
            raise UploadError("The files of this visit are no longer kept. Load the page again.")
        return folder

    def _owner(self, folder: Path) -> str:
        """Return the id of who brought a folder's files; empty where nobody logs in."""
        try:
            return (self._owners / folder.name).read_text("utf-8")
        except FileNotFoundError:
            return ""

    def _check_room(self, owner: str, coming: int, name: str) -> None:
        """Refuse bytes that the disk, or somebody's share of it, has no room for."""
        self._root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._root).free
        if coming + SPARE > free:
            raise DiskFull(
                f"The server has room for files of {max(free - SPARE, 0) / 1e9:.1f} GB; of {name} "
                f"{coming / 1e9:.1f} GB are to come. Remove files there, or store the model in half precision."
            )
        most = Settings.of_environment().bytes if owner else 0
        if most and (taken := self.bytes_of(owner)) + coming > most:
            raise UploadError(
                f"Your uploads take {taken / 1e9:.1f} GB, of {name} {coming / 1e9:.1f} GB are to come, and "
                f"{most / 1e9:.1f} GB are the most that a person's may take. Remove some of them first."
            )

    def _put(self, content: Path, place: Path, folder: Path) -> None:
        """Link a content into a folder; a loose file of a taken name gets a number, a file of a folder is replaced."""
        if sum(1 for path in folder.rglob("*") if path.is_file()) >= MOST_FILES:
            raise UploadError(f"{MOST_FILES:,} files have come. Put more of them into a folder on the server.")
        place.parent.mkdir(parents=True, exist_ok=True)
        number = 1
        free = place
        while place.parent == folder and free.exists() and not _same(free, content):
            number += 1
            free = place.with_name(f"{place.stem}-{number}{place.suffix}")
        if not (free.exists() and _same(free, content)):
            _link(content, free)
        os.utime(folder)
        os.utime(content)


def folder_name(tray: str) -> str:
    """Return the name of a tray's folder, from which nobody finds the tray."""
    return hashlib.sha256(tray.encode()).hexdigest()[:24]


def _mark(person: str) -> str:
    """Return how names of files begin that came from somebody; nothing where nobody logs in."""
    return f"{hashlib.sha256(person.encode()).hexdigest()[:16]}-" if person else ""


def safe_path(name: str) -> PurePosixPath:
    """Return a file's name or relative path as one that may be written: plain letters, no hidden parts, no way up.

    Raises:
        UploadError: nothing of it is left, it is too deep, or it is of a kind that is not taken.
    """
    parts = [part for part in re.split(r"[/\\]+", name) if part not in ("", ".")]
    if ".." in parts or not parts or len(parts) > 6:
        raise UploadError(f"'{name:.100}' is no name of a file that can be taken.")
    last = PurePosixPath(parts[-1])
    suffix = last.suffix.lower()
    if suffix not in SUFFIXES:
        raise UploadError(
            f"{_plain(last.name)} is not taken. Models come as {', '.join(WEIGHTS)} with files of configs and "
            "tokenizers, images as .zip of class folders, .parquet or .npz, texts as .jsonl, .csv, .tsv or .parquet."
        )
    return PurePosixPath(*map(_plain, parts[:-1]), _plain(last.stem) + suffix)


def _plain(part: str) -> str:
    """Return a part of a path in plain letters, neither hidden nor empty."""
    letters = unicodedata.normalize("NFKD", part).encode("ascii", "ignore").decode()
    return re.sub(r"[^\w.+=-]+", "_", letters, flags=re.ASCII)[:100].strip("._-") or "file"


def most_bytes() -> int:
    """Return the bytes that one file may have; 0 where the operator has switched uploads off."""
    try:
        return max(0, int(float(os.environ.get(ENV_LIMIT) or LIMIT_GB) * 2**30))
    except (ValueError, OverflowError):
        return int(LIMIT_GB * 2**30)


def _check(size: int, sha256: str) -> None:
    most = most_bytes()
    if not most:
        raise UploadError("This server takes no uploads. Put the files into one of its folders.")
    if not DIGEST.fullmatch(sha256):
        raise UploadError("The file's digest is not one.")
    if size <= 0:
        raise UploadError("The file is empty.")
    if size > most:
        raise UploadError(
            f"The file has {size / 2**30:.1f} GiB; up to {most / 2**30:.3g} are taken. Put it into a "
            "folder of the server."
        )


def _write(stream: object, piece: bytes, size: int) -> None:
    if stream.tell() + len(piece) > size:
        raise UploadError(f"More bytes come than the {size:,} that were announced.")
    stream.write(piece)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _older(path: Path, moment: float) -> bool:
    try:
        return path.stat().st_mtime < moment
    except OSError:
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _links(path: Path) -> int:
    try:
        return path.stat().st_nlink
    except OSError:
        return 0


def _link(source: Path, target: Path) -> None:
    """Put a file under a second name in one step; copied where a file system has no hard links."""
    temporary = target.with_name(f".{secrets.token_hex(6)}.tmp")
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
    temporary.replace(target)


def _same(first: Path, second: Path) -> bool:
    """Return whether two files are one, or hold the same where a file system has no hard links."""
    if first.samefile(second):
        return True
    if first.stat().st_size != second.stat().st_size:
        return False
    with first.open("rb") as one, second.open("rb") as other:
        return all(
            a == b
            for a, b in zip(iter(lambda: one.read(PIECE), b""), iter(lambda: other.read(PIECE), b""), strict=True)
        )
