"""Files that came together, such as an upload: which are models, which data. Free of torch; names alone are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..images.readers.source import split_of
from ..modalities import MODALITIES
from .roots import WEIGHTS, Candidates, find_candidates, is_model_folder, sort_candidates

DATA = tuple(dict.fromkeys(ending for kind in MODALITIES.values() for ending in kind.files))


@dataclass(frozen=True)
class Sorted:
    """Models and data among some files."""

    models: Candidates
    data: tuple[Path, ...]  # one entry a task: a file, or a folder of shards or splits


def sort_files(folder: Path) -> Sorted:
    """Tell models and data apart. Files at the top are one each, whatever configs lie beside them.

    Args:
        folder: what came.

    Raises:
        ZooError: it cannot be read.
    """
    entries = sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda path: path.name)
    models, data = [], []
    for path in entries:
        if path.is_dir():
            found = [path] if is_model_folder(path) else _models_below(path, folder)
            models += found
            data += [] if found else _data_below(path)
        elif path.suffix in WEIGHTS:
            models.append(path)
        elif path.suffix in DATA:
            data.append(path)
    return Sorted(sort_candidates(models), tuple(data))


def _models_below(path: Path, top: Path) -> list[Path]:
    found = find_candidates(path, roots=(top,))
    return [*([found.base] if found.base else []), *found.experts, *found.heads]


def _data_below(folder: Path) -> list[Path]:
    """Return a folder whose files are the shards or splits of one task, else its files and those of its folders."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in DATA)
    sharded = all(path.suffix == ".parquet" for path in files)
    if files and (sharded or all(split_of(path.stem.split("-")[0]) for path in files)):
        return [folder]
    return files
