"""Folders of this machine that people may choose files from, and what lies in them. Free of torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

from ...errors import ZooError
from ...manifest import ASSETS, known_zoos, locate_description
from ..names import known_task, looks_like_base, looks_like_head

ENV = "MERGELENS_ROOTS"
WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")
SINGLE = ("model.safetensors", "pytorch_model.bin", "open_clip_model.safetensors", "open_clip_pytorch_model.bin")
ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
ADAPTER = "adapter_config.json"  # beside an adapter's weights
CONFIGS = ("config.json", "open_clip_config.json", ADAPTER)
MOST_ENTRIES = 500
MOST_LOOKED_AT = 20_000  # entries of a folder in a search
MOST_FOUND = 200
MOST_FOLDERS = 5_000
DEPTH = 3


@dataclass(frozen=True)
class Entry:
    """One line of a folder's listing."""

    path: Path
    kind: str  # folder, model (a folder or file with weights)
    size: int = 0  # bytes

    @property
    def name(self) -> str:
        """Return its name."""
        return self.path.name


@dataclass
class Candidates:
    """The files of a folder that may be models, by the look of their names."""

    base: Path | None = None
    experts: list[Path] = field(default_factory=list)
    heads: list[Path] = field(default_factory=list)


def configured_roots() -> tuple[Path, ...]:
    """Return folders to choose from: ``MERGELENS_ROOTS`` (separated as in PATH), else here and the home folder."""
    given = [part for part in os.environ.get(ENV, "").split(os.pathsep) if part.strip()]
    paths = [Path(part).expanduser() for part in given] if given else [Path.cwd(), Path.home()]
    return tuple(dict.fromkeys(path.resolve() for path in paths if path.is_dir()))


def inside_roots(path: Path | str, also: Iterable[Path] = (), roots: tuple[Path, ...] | None = None) -> Path:
    """Return a path with its links resolved, if it lies in one of the roots.

    Args:
        path: absolute, or relative to where the app runs.
        also: further folders that are allowed.
        roots: in place of the configured ones.

    Raises:
        ZooError: it leaves the roots, also by ``..`` or through a symbolic link.
    """
    allowed = (*(configured_roots() if roots is None else roots), *also)
    try:
        found = Path(path).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ZooError(f"The path '{path!s:.200}' cannot be followed.") from error
    if not any(found.is_relative_to(root) for root in (folder.resolve() for folder in allowed)):
        raise ZooError(
            f"'{path!s:.200}' lies outside the folders that this app may read. Move it there, or name its folder in "
            f"{ENV} and start the app again."
        )
    return found


def check_zoo(zoo: str, known: Callable[[], Iterable[Path]] = tuple) -> Path:
    """Return where a zoo lies, if people may open it: it comes with the app, lies in a root, or is known.

    Args:
        zoo: a bundled zoo's name, or a path.
        known: gives further folders that are allowed; asked only where it matters.

    Raises:
        ZooError: there is no such zoo, or it lies elsewhere.
    """
    place = locate_description(zoo)
    if place.resolve().is_relative_to(_resolved(ASSETS)):
        return place
    try:
        return inside_roots(place)
    except ZooError:
        return inside_roots(place, also=known())


@lru_cache(maxsize=8)
def _resolved(folder: Path) -> Path:
    return folder.resolve()  # asked for at every look at a zoo


def named_zoos(request: Any) -> Iterator[str]:
    """Find the zoos that a request names, wherever in it they stand."""
    if isinstance(request, dict):
        for name, value in request.items():
            if name == "zoo" and isinstance(value, str):
                yield value
            elif request.get("place") == "zoo" and name == "values":
                yield from map(str, value)
            else:
                yield from named_zoos(value)
    elif isinstance(request, (list, tuple)):
        for value in request:
            yield from named_zoos(value)


def with_whole_paths(request: Any) -> Any:
    """Return a request whose zoos are named by whole paths where they were named from the present folder."""
    if isinstance(request, (list, tuple)):
        return [with_whole_paths(value) for value in request]
    if not isinstance(request, dict):
        return request
    found = {name: with_whole_paths(value) for name, value in request.items()}
    if isinstance(found.get("zoo"), str):
        found["zoo"] = _whole(found["zoo"])
    if found.get("place") == "zoo" and "values" in found:
        found["values"] = [_whole(str(value)) for value in found["values"]]
    return found


def _whole(zoo: str) -> str:
    bundled = {listed.name for listed in known_zoos()}
    return zoo if not zoo or zoo in bundled else str(locate_description(zoo).absolute())


def list_folder(folder: Path, roots: tuple[Path, ...] | None = None, most: int = MOST_ENTRIES) -> list[Entry]:
    """List folders and models in a folder, by name; hidden ones and links that leave the roots are left out.

    Args:
        folder: inside the roots.
        roots: in place of the configured ones.
        most: entries that are listed.

    Raises:
        ZooError: the folder lies outside the roots or cannot be read.
    """
    folder = inside_roots(folder, roots=roots)
    try:
        paths = sorted(folder.iterdir(), key=lambda path: (not path.is_dir(), path.name.lower()))
    except OSError as error:
        raise ZooError(f"The folder {folder} cannot be read: {error.strerror}.") from error
    found = []
    for path in paths:
        entry = None if path.name.startswith(".") or not _is_inside(path, roots) else _entry(path)
        if entry is not None:
            found.append(entry)
        if len(found) == most:
            break
    return found


def is_model_folder(folder: Path) -> bool:
    """Tell whether a folder is one model as Hugging Face or open_clip keep them, or an adapter.

    A config beside several files of weights is such a model where one of them bears the usual name; other files with a
    config beside them are a model each.
    """
    if (folder / "zoo.yaml").is_file() or not any((folder / name).is_file() for name in CONFIGS):
        return False
    names = [path.name for path in folder.iterdir() if path.suffix in WEIGHTS or path.name.endswith(".index.json")]
    weights = [name for name in names if not looks_like_head(PurePath(name))]
    return len(weights) == 1 or any(name in (*SINGLE, *ADAPTERS) or name.endswith(".index.json") for name in weights)


def find_candidates(folder: Path, roots: tuple[Path, ...] | None = None) -> Candidates:
    """Look for a base, experts and heads in a folder and up to three levels below it, by names alone.

    Raises:
        ZooError: the folder lies outside the roots or cannot be read.
    """
    return sort_candidates(_models_below(inside_roots(folder, roots=roots), roots))


def sort_candidates(paths: Iterable[Path]) -> Candidates:
    """Tell base, experts and heads apart by their names; the first that looks like a base is it."""
    found = Candidates()
    for path in paths:
        if looks_like_head(path):
            found.heads.append(path)
        elif found.base is None and looks_like_base(path) and not known_task(path.stem):
            found.base = path
        else:
            found.experts.append(path)
    return found


def _models_below(top: Path, roots: tuple[Path, ...] | None) -> list[Path]:
    """Models in order of folders, depth first; folders that cannot be read are passed over."""
    if is_model_folder(top):
        return [top]
    found: list[Path] = []
    waiting, visited = [(Entry(top, "folder"), 0)], 0
    while waiting and len(found) < MOST_FOUND and visited < MOST_FOLDERS:
        entry, depth = waiting.pop()
        if entry.kind == "model":
            found.append(entry.path)
        elif depth <= DEPTH and os.access(entry.path, os.R_OK | os.X_OK) and not (depth and entry.path.is_symlink()):
            visited += 1
            waiting += [(inner, depth + 1) for inner in reversed(list_folder(entry.path, roots, MOST_LOOKED_AT))]
    return found


def _entry(path: Path) -> Entry | None:
    try:
        if path.is_dir():
            return Entry(path, "model" if is_model_folder(path) else "folder")
        if path.is_file() and path.suffix in WEIGHTS:
            return Entry(path, "model", path.stat().st_size)
    except OSError:
        return None
    return None


def _is_inside(path: Path, roots: tuple[Path, ...] | None) -> bool:
    try:
        inside_roots(path, roots=roots)
    except ZooError:
        return False
    return True
