"""Files that came together, such as an upload: which are models, which images. Free of torch; names alone are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .roots import WEIGHTS, Candidates, find_candidates, is_model_folder, sort_candidates

IMAGES = (".zip", ".npz", ".parquet")


@dataclass(frozen=True)
class Sorted:
    """Models and images among some files."""

    models: Candidates
    images: tuple[Path, ...]  # one entry a task: a file, or a folder of shards


def sort_files(folder: Path) -> Sorted:
    """Tell models and images apart. Files at the top are one each, whatever configs lie beside them.

    Args:
        folder: what came.

    Raises:
        ZooError: it cannot be read.
    """
    entries = sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda path: path.name)
    models, images = [], []
    for path in entries:
        if path.is_dir():
            found = [path] if is_model_folder(path) else _models_below(path, folder)
            models += found
            images += [] if found else _images_below(path)
        elif path.suffix in WEIGHTS:
            models.append(path)
        elif path.suffix in IMAGES:
            images.append(path)
    return Sorted(sort_candidates(models), tuple(images))


def _models_below(path: Path, top: Path) -> list[Path]:
    found = find_candidates(path, roots=(top,))
    return [*([found.base] if found.base else []), *found.experts, *found.heads]


def _images_below(folder: Path) -> list[Path]:
    """Return a folder whose files are the shards of one task, else its files of images and those of its folders."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in IMAGES)
    if files and all(path.suffix == ".parquet" for path in files):
        return [folder]
    return files
