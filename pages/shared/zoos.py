"""Manifests of zoos, read once for each change of their file, and found again by one look at it."""

import os
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from engine.errors import ZooError
from engine.manifest import ENV_CACHE, Manifest, locate_zoo, made_folder, manifest_file, read_manifest
from engine.zoo.importing.roots import ENV, check_zoo
from pages.shared.state import store

MANIFESTS = 1_000  # more than there are zoos: the Lab's form shows the title of every one


@dataclass(frozen=True)
class _Found:
    """A zoo that people may open, as it was found last."""

    folder: Path
    files: tuple[Path, ...]  # that decide where it lies and what it says, by the way that was asked for
    stamp: tuple[tuple[int, ...], ...]  # of these files
    manifest: Manifest


_found: dict[tuple[str, ...], _Found] = {}  # zoos that come with the app or lie in a root


def zoo_manifest(zoo: str) -> Manifest:
    """Return a zoo's manifest.

    Raises:
        ZooError: there is no such zoo, it lies outside the roots, or its manifest cannot be used.
    """
    return _find(zoo).manifest


def zoo_folder(zoo: str) -> Path:
    """Return where a zoo lies, as :func:`engine.manifest.locate_zoo` does, if people may open it.

    Raises:
        ZooError: there is no such zoo, it lies outside the roots, or its manifest cannot be used.
    """
    return _find(zoo).folder


def _find(zoo: str) -> _Found:
    name = (zoo, str(Path.cwd()), *(os.environ.get(setting, "") for setting in (ENV, ENV_CACHE)))
    before = _found.get(name)
    if before is not None and _stamp(before.files) == before.stamp:
        return before
    _found.pop(name, None)
    place = check_zoo(zoo, store().zoos.list)
    folder = locate_zoo(zoo)
    files = _deciding(zoo, place)
    stamp = _stamp(files)
    found = _Found(folder, files, stamp, _manifest(str(folder), manifest_file(folder).stat().st_mtime_ns))
    if stamp[0] and _stays_open(zoo) and len(_found) < MANIFESTS:
        _found[name] = found
    return found


def _deciding(zoo: str, place: Path) -> tuple[Path, ...]:
    """Return the manifest, by the links that lead to it; of a described zoo the description, and what is made of it."""
    asked = place if "/" not in zoo else Path(zoo).expanduser()
    if place.suffix in (".yaml", ".yml"):
        return asked, made_folder(place) / "zoo.yaml"
    return (asked if asked.name == "zoo.yaml" else asked / "zoo.yaml",)


def _stamp(files: tuple[Path, ...]) -> tuple[tuple[int, ...], ...]:
    """Return what tells files from others at the same places; nothing of one that is not there."""
    return tuple(_seen(file) for file in files)


def _seen(file: Path) -> tuple[int, ...]:
    try:
        found = os.stat(file)  # noqa: PTH116 - asked for some thirty times a rerun
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _stays_open(zoo: str) -> bool:
    """Return whether a zoo may be opened whatever the store forgets."""
    try:
        return bool(check_zoo(zoo))
    except ZooError:
        return False


@st.cache_resource(max_entries=MANIFESTS, show_spinner=False)
def _manifest(folder: str, modified: int) -> Manifest:
    return read_manifest(Path(folder))
