"""A copy of a zoo that comes with the app, to train experts in; its training samples are made where they are not there.

Free of torch at import.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from ...errors import ZooError
from ...manifest import SAFE_NAME, Manifest, bundled_zoos
from ...recipe import explain, read_yaml
from ...types import Progress
from ..folder import Zoo

HEADER = "# A copy of the zoo {}, made to train experts in.\n"


def copies_of(name: str, folders: Iterable[Path]) -> list[Path]:
    """Return the folders that hold a copy of a zoo, made to train in."""
    found = []
    for folder in folders:
        with (
            contextlib.suppress(OSError, UnicodeDecodeError),
            (folder / "zoo.yaml").open("r", encoding="utf-8") as file,
        ):
            if file.read(200).startswith(HEADER.format(name)):
                found.append(folder)
    return found


def check_copy(zoo: Zoo, folder: Path) -> None:
    """Refuse a copy that cannot be made.

    Raises:
        ZooError: the name is none for a zoo, or a folder of that name is there.
    """
    if not re.match(SAFE_NAME, folder.name):
        raise ZooError(
            f"'{folder.name:.64}' is no name of a zoo: give 1 to 64 letters, digits, dots, dashes or underscores that "
            "begin with a letter or digit."
        )
    if folder.name in bundled_zoos():
        raise ZooError(f"'{folder.name}' is the name of a zoo that comes with the app. Choose another name.")
    if folder.exists():
        raise ZooError(f"There is a zoo or folder '{folder.name}' already. Choose another name.")


def copy_zoo(zoo: Zoo, folder: Path, progress: Progress, tasks: Collection[str] | None = None) -> Path:
    """Copy everything that a zoo's folder holds; all of it appears or nothing.

    Tasks of a bundled zoo get the training samples that its experts were trained on, made again.

    Args:
        zoo: what is copied.
        folder: the new zoo; it must not exist. Its name becomes the zoo's.
        progress: told how far it is.
        tasks: that get training samples; by default all there are.

    Returns:
        The new folder.

    Raises:
        ZooError: the folder exists or cannot be written.
    """
    check_copy(zoo, folder)
    building = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(zoo.folder, building, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns(".*"))
        _rename(building, folder.name, zoo.manifest)
        adders = _adders(zoo)
        wanted = [task for task in adders if task in zoo.data and (tasks is None or task in tasks)]
        missing = [task for task in wanted if not zoo.data[task].has("train")]
        for place, task in enumerate(missing):
            progress(place / len(missing), f"making training {zoo.modality.many} of {task}")
            adders[task](building / str(zoo.manifest.task_table[task].data))
        building.rename(folder)
    except OSError as error:
        raise ZooError(f"{folder} cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _adders(zoo: Zoo) -> dict[str, Callable[[Path], None]]:
    """Return by task what makes its training samples in a folder of data, for zoos that come with the app."""
    if zoo.manifest.name == "mini8":
        from ..mini8.training_images import add_training_images, drawn_tasks

        def draw(task: str, path: Path) -> None:
            data = zoo.data[task]
            published = {split: np.asarray(data.samples(split)[:]) for split in data.lengths}
            add_training_images(task, path, published)

        return {task: partial(draw, task) for task in drawn_tasks()}
    if zoo.manifest.name == "mini_text":
        from ..mini_text.training_texts import add_training_texts, written_tasks

        return {task: partial(add_training_texts, task) for task in written_tasks()}
    return {}


def _rename(folder: Path, name: str, manifest: Manifest) -> None:
    """Give the copy its name, in zoo.yaml."""
    document = read_yaml(folder / "zoo.yaml", ZooError, "manifest")
    document |= {"name": name, "title": f"{manifest.title or manifest.name}, {name}"}
    try:
        Manifest.model_validate(document)
    except ValueError as error:
        raise ZooError(f"The copy could not be described: {explain(error, Manifest)}") from error
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
    (folder / "zoo.yaml").write_text(HEADER.format(manifest.name) + text, "utf-8")
