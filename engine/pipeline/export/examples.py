"""The finished example runs that ship with the app, so that the first page is never empty.

They are shown as they are, with their build record; anyone can make them again with ``python -m engine examples``.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import safe_open
from safetensors.numpy import load_file, save, save_file

from ...analysis.neighbours import nearest_neighbours
from ...errors import RecipeError, nearest
from ...manifest import ASSETS
from ...recipe import Recipe, parse_recipe
from ...report import Report, read_report
from ...store import Store
from ...types import Progress
from ..local import copy_result, make_view, run_recipe
from ..offered import offered_views
from ..viewing.shipped import FOLDER, LEARNED, shipped_name
from ..views.film import FILM, drawn_states
from .beside import build_beside

NEIGHBOURS = "neighbours.parquet"
KEPT = ("report.json", "recipe.yaml", "samples.parquet", "projections", NEIGHBOURS)
FILM_FOLDER = "films"
NEAREST = 8
VIEWS = ("tsne", "umap", "pca")
LWPTV = [{"method": "lwptv", "params": {"eta": 0.7}}]
CALIBRATORS = [
    {"method": "surgery", "params": {"rank": 16, "steps": 1000}},
    {"method": "prob_surgery", "params": {"hidden": 128, "steps": 1000}},
]
TEXT_CALIBRATORS = [
    {"method": "surgery", "params": {"rank": 8, "steps": 1000}},
    {"method": "prob_surgery", "params": {"hidden": 32, "steps": 1000}},
]
TASK_ARITHMETIC = {"method": "task_arithmetic", "params": {"scaling": 0.3}}
TIES = {"method": "ties", "params": {"density": 0.2, "merge": "sum", "scaling": 0.3}}
EXAMPLES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("task-arithmetic", "Task Arithmetic", {"merge": TASK_ARITHMETIC}),
    ("task-arithmetic-lwptv", "Task Arithmetic with LwPTV", {"merge": TASK_ARITHMETIC, "transforms": LWPTV}),
    ("ties", "TIES", {"merge": TIES}),
    ("ties-lwptv", "TIES with LwPTV", {"merge": TIES, "transforms": LWPTV}),
    (
        "text-task-arithmetic",
        "Task Arithmetic on sentences",
        {"zoo": "mini_text", "merge": TASK_ARITHMETIC, "calibrators": TEXT_CALIBRATORS},
    ),
)
TRAINING = (1, 10, 20, 50, 100, 200, 300, 500, 700, 1000)  # steps of a calibrator
FILMS: dict[str, tuple[tuple[str, tuple[Any, ...]], ...]] = {  # example → places and their values
    "task-arithmetic": (
        ("merge.params.scaling", tuple(round(0.05 * step, 2) for step in range(21))),
        ("experts", tuple(range(9))),
        ("calibrators.0.params.steps", TRAINING),
        ("calibrators.1.params.steps", TRAINING),
        ("calibrators.0.params.rank", (1, 2, 4, 8, 16, 32, 64, 128)),
        ("calibrators.1.params.hidden", (4, 8, 16, 32, 64, 128, 256)),
    ),
    "task-arithmetic-lwptv": (("transforms.0.params.eta", tuple(round(0.1 * step, 1) for step in range(10))),),
    "text-task-arithmetic": (("merge.params.scaling", tuple(round(0.05 * step, 2) for step in range(21))),),
    "ties": (("merge.params.density", (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)),),
}
DECIMALS = 3  # of numbers in tables of shipped views
DIGITS = 4  # significant ones of numbers in shipped tables
SAMPLE_DECIMALS = 4  # of numbers of single samples
DOCUMENT_DIGITS = 6  # significant ones of fractions in shipped documents


def _check_names(names: Collection[str]) -> None:
    known = [name for name, _, _ in EXAMPLES]
    if unknown := [name for name in names if name not in known]:
        raise RecipeError(f"There is no example '{unknown[0]}'. {nearest(unknown[0], known)}")


def example_recipe(parts: dict[str, Any]) -> Recipe:
    """Return the recipe of an example: two calibrators, three training seeds, held out."""
    return parse_recipe({"zoo": "mini8", "calibrators": CALIBRATORS, "seeds": [0, 1, 2], **parts})


def build_examples(store: Store, out: Path | None = None, *, only: Collection[str] = (), progress: Progress) -> None:
    """Run examples and keep their small parts: report, recipe, samples and projections.

    Args:
        store: where the runs are computed.
        out: the folder of examples; by default the one that ships with the app.
        only: names of those that are run; the others stay as they are. All by default.
        progress: told how far each run is.

    Raises:
        StoreError: an example that is to stay is not there.
        RecipeError: there is no example of a name.
    """
    _check_names(only)
    out = out or ASSETS / "examples"
    out.mkdir(parents=True, exist_ok=True)
    index = []
    for name, title, parts in EXAMPLES:
        if only and name not in only:
            index.append({"name": name, "title": title, "identity": read_report(out / name).identity})
            continue
        recipe = example_recipe(parts)
        with tempfile.TemporaryDirectory(dir=out, prefix=".building-") as scratch:
            built = Path(scratch) / VIEWS[0]
            for view in VIEWS:
                place = Path(scratch) / view
                report = run_recipe(recipe, store, view={"method": view}, out=place, progress=progress)
                if place != built:
                    shutil.move(place / "projections" / view, built / "projections" / view)
            neighbour_table(built).to_parquet(built / NEIGHBOURS, index=False)
            target = out / name
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            for part in KEPT:
                shutil.move(built / part, target / part)
            for folder in (target, *(target / "projections").iterdir()):
                shrink_tables(folder, SAMPLE_DECIMALS)
            shrink_documents(target, exact=True)
        build_films(name, recipe, store, target / FILM_FOLDER, progress)
        _beside(name, recipe, store, target, progress)
        build_views(report, store, target / FOLDER, progress)
        index.append({"name": name, "title": title, "identity": report.identity})
    record = {"built": datetime.now(UTC).isoformat(timespec="seconds"), "examples": index}
    (out / "index.json").write_text(json.dumps(record, indent=1) + "\n")


def rebuild_films(store: Store, out: Path | None = None, *, only: Collection[str] = (), progress: Progress) -> None:
    """Make the films of examples that are there already, and leave all else of them as it is.

    Args:
        store: where the frames are computed.
        out: the folder of examples; by default the one that ships with the app.
        only: names of those whose films are made. All by default.
        progress: told how far each film is.

    Raises:
        StoreError: an example that has films is not there.
        RecipeError: there is no example of a name.
    """
    _check_names(only)
    for name in [name for name in FILMS if name in (only or FILMS)]:
        example = (out or ASSETS / "examples") / name
        report = read_report(example)
        with tempfile.TemporaryDirectory(dir=example, prefix=".building-") as scratch:
            build_films(name, report.recipe, store, Path(scratch) / FILM_FOLDER, progress)
            shutil.rmtree(example / FILM_FOLDER, ignore_errors=True)
            shutil.move(Path(scratch) / FILM_FOLDER, example / FILM_FOLDER)


def rebuild_beside(store: Store, out: Path | None = None, *, only: Collection[str] = (), progress: Progress) -> None:
    """Make the sweeps and learned coefficients beside examples that are there, and leave all else as it is.

    Args:
        store: where the runs are computed.
        out: the folder of examples; by default the one that ships with the app.
        only: names of the examples. All by default.
        progress: told how far each run is.

    Raises:
        StoreError: an example is not there.
        RecipeError: there is no example of a name.
    """
    _check_names(only)
    for name in [name for name, _, _ in EXAMPLES if not only or name in only]:
        example = (out or ASSETS / "examples") / name
        _beside(name, read_report(example).recipe, store, example, progress)


def _beside(name: str, recipe: Recipe, store: Store, example: Path, progress: Progress) -> None:
    build_beside(name, recipe, store, example, progress)
    for folder in (example / LEARNED).glob("*"):
        shrink_documents(folder, exact=True)


def build_films(name: str, recipe: Recipe, store: Store, out: Path, progress: Progress) -> None:
    """Make an example's films, on all its images and with its first seed.

    Args:
        name: of the example.
        recipe: of the example.
        store: where the frames are computed.
        out: folder that gets a folder a film, named by its place.
        progress: told how far each film is.
    """
    for place, values in FILMS.get(name, ()):
        asked = FILM.ask(recipe, place=place, values=values, images="all")
        copy_result(make_view(FILM, asked, store, progress=progress), out / place)
        shrink_film(out / place, recipe)
        shrink_documents(out / place)


def shrink_film(folder: Path, recipe: Recipe) -> None:
    """Leave out of a film the points of states that are not drawn; their accuracies stay.

    Args:
        folder: of the film.
        recipe: of the run.
    """
    drawn = drawn_states(FILM.read(folder), recipe)
    arrays = load_file(folder / "film.safetensors")
    kept = {name: values for name, values in arrays.items() if "/" not in name or name.partition("/")[0] in drawn}
    save_file(kept, folder / "film.safetensors")


def build_views(report: Report, store: Store, out: Path, progress: Progress) -> None:
    """Make an example's views.

    Args:
        report: of its run.
        store: where they are computed.
        out: folder that gets a folder a view, named by what is asked for.
        progress: told how far each view is.
    """
    for view, asked in offered_views(report):
        folder = out / shipped_name(view, asked)
        copy_result(make_view(view, asked, store, progress=progress), folder)
        shrink_tables(folder)
        shrink_arrays(folder)
        shrink_documents(folder)


def shrink_tables(folder: Path, decimals: int = DECIMALS) -> None:
    """Round the numbers of a folder's tables to so many decimals and four digits, which takes a third of the bytes."""
    for path in folder.glob("*.parquet"):
        table = pd.read_parquet(path)
        for name in table.select_dtypes("floating"):
            values = table[name].to_numpy(dtype=float)
            size = np.abs(np.nan_to_num(values, posinf=1.0, neginf=1.0))
            places = np.clip(DIGITS - 1 - np.floor(np.log10(np.maximum(size, 1e-9))), 0, decimals)
            table[name] = (np.round(values * 10**places) / 10**places).astype("float32")
        fractions = set(table.select_dtypes("floating"))
        repeated = [name for name in table if name not in fractions]  # few values; fractions may have few or many
        ways = (
            table.to_parquet(index=False, compression="zstd", compression_level=19, use_dictionary=columns)
            for columns in (True, repeated)
        )
        path.write_bytes(min(ways, key=len))


def shrink_documents(folder: Path, *, exact: bool = False) -> None:
    """Round the fractions of a folder's JSON documents to six digits and leave out what only indents them.

    Args:
        folder: with the documents.
        exact: keep fractions as they are, as of a report, whose accuracies are quoted and must round the same way.
    """
    for path in folder.glob("*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        document = document if exact else _rounded(document)
        path.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return (
        float(f"{value:.{DOCUMENT_DIGITS}g}")
        if isinstance(value, float) and abs(value) < 10**DOCUMENT_DIGITS
        else value
    )


def shrink_arrays(folder: Path) -> None:
    """Write a folder's arrays in half precision, which is what a figure shows, or single where that loses more."""
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "numpy") as file:
            metadata, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        path.write_bytes(save({name: _shorter(array) for name, array in arrays.items()}, metadata))


def _shorter(array: np.ndarray) -> np.ndarray:
    """Return an array in half precision where its entries keep three digits, or six of the greatest; else in single."""
    if not np.issubdtype(array.dtype, np.floating):
        return array
    single, size = array.astype("float32"), np.abs(array)
    with np.errstate(over="ignore"):
        half = single.astype("float16")
    lost = np.abs(half.astype("float64") - array)
    return half if (lost <= 1e-3 * size + 1e-6 * size.max(initial=0.0)).all() else single


def neighbour_table(run: Path) -> pd.DataFrame:
    """Return the nearest images in feature space, since an example keeps no features to search.

    Args:
        run: a run's folder, with its features and a projection; the images of that are asked about and searched.

    Returns:
        Columns state, task, index, rank (from 0), neighbour (its index), distance (1 − cos, among the images of the
        same task).
    """
    views = sorted((run / "projections").iterdir())
    shown = pd.read_parquet(views[0] / "projection.parquet")  # all of them show the same images
    samples = pd.read_parquet(run / "samples.parquet", columns=["task", "state", "index"])
    rows = []
    with safe_open(run / "features.safetensors", "numpy") as file:
        for (state, task), images in shown.groupby(["state", "task"], sort=False, observed=True):
            indices = images["index"].tolist()
            own = samples[(samples["task"] == task) & (samples["state"] == "pretrained")]["index"]
            place = {index: row for row, index in enumerate(own.tolist())}
            features = file.get_tensor(f"{state}/{task}/evaluate")[[place[index] for index in indices]]
            for row, index in enumerate(indices):
                near, away = nearest_neighbours(features, row, NEAREST)
                rows += [
                    (state, task, index, rank, indices[other], distance)
                    for rank, (other, distance) in enumerate(zip(near.tolist(), away.tolist(), strict=True))
                ]
    table = pd.DataFrame(rows, columns=["state", "task", "index", "rank", "neighbour", "distance"])
    return table.astype(
        {
            "state": "category",
            "task": "category",
            "index": "int32",
            "rank": "int8",
            "neighbour": "int32",
            "distance": "float32",
        }
    )
