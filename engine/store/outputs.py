"""Files and folders that commands write: inputs are never replaced, other files only when asked, none half-written."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import EngineError
from .owners import is_alive, is_neighbour, this_process

MARK = ".writing"  # ending of a folder that is not whole yet


def free_at(folder: Path) -> int:
    """Return bytes that may be written to the disk of a folder, which need not exist yet."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def check_file(path: Path, inputs: Iterable[Path] = (), *, force: bool = False) -> None:
    """Refuse a place that a result may not be written to; called before anything is computed.

    Args:
        path: the file to write.
        inputs: files that the result is made of, which stay whatever is asked for.
        force: whether another file that is there already may be replaced.

    Raises:
        EngineError: an input, a folder, an existing file, or a folder that is missing or cannot be written to.
    """
    for source in inputs if path.exists() else ():
        if source.exists() and path.samefile(source):
            raise EngineError(
                f"{path} is an input of this command ({source}); a result never replaces what it is made of. "
                "Give another name."
            )
    if path.is_dir():
        raise EngineError(f"{path} is a folder; give the name of a file.")
    if path.exists() and not force:
        raise EngineError(f"{path} exists already; give a new name, or --force to replace it.")
    parent = path.absolute().parent
    if not parent.is_dir():
        raise EngineError(f"The folder {parent} does not exist; make it or give another name.")
    if not _takes_files(parent):
        raise EngineError(f"{parent} cannot be written to; give another place.")


def _takes_files(folder: Path) -> bool:
    """Return whether a file can be made in a folder; permissions alone do not say it (read-only disks, superusers)."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@contextmanager
def new_file(path: Path, inputs: Iterable[Path] = (), *, force: bool = False) -> Iterator[Path]:
    """Give a name beside a file to write to; the file takes its own name when the block ends well.

    Args:
        path: the file to write.
        inputs: files that the result is made of.
        force: whether another file that is there already may be replaced.

    Raises:
        EngineError: see :func:`check_file`; or the disk refuses.
    """
    check_file(path, inputs, force=force)
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(6)}{path.suffix}")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise EngineError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def check_folder(final: Path) -> None:
    """Refuse a place where no new folder can be made; called before anything is computed.

    Raises:
        EngineError: something is there already, or the place cannot be written to.
    """
    if final.is_dir():
        if any(final.iterdir()):
            raise EngineError(f"The folder {final} is not empty. Give a new folder, so that nothing is overwritten.")
    elif final.exists():
        raise EngineError(f"{final} exists already and is a file; give a new name.")
    place = final.absolute().parent
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not _takes_files(place):
        raise EngineError(f"{final} cannot be made, because {place} cannot be written to; give another place.")


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Give a folder that takes its name when the block ends well, and is gone when it does not.

    Raises:
        EngineError: the folder is there already and not empty, or cannot be written.
    """
    check_folder(final)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _sweep(final)
        owner = this_process().replace(":", "-")
        folder = final.parent / f".{final.name}.{owner}.{secrets.token_hex(4)}{MARK}"
        folder.mkdir()
    except OSError as error:
        raise EngineError(f"{final.parent} cannot be written to: {error.strerror}.") from error
    try:
        yield folder
        if final.is_dir():
            final.rmdir()  # it was empty when it was looked at
        folder.rename(final)
    except OSError as error:
        raise EngineError(f"{final} cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(final: Path) -> None:
    """Remove what a process that was killed has left."""
    for folder in final.parent.glob(f".{final.name}.*{MARK}"):
        owner = folder.name.removeprefix(f".{final.name}.").split(".")[0].replace("-", ":")
        if is_neighbour(owner) and not is_alive(owner):
            shutil.rmtree(folder, ignore_errors=True)
