"""A run's images as one table for embedding-atlas and other viewers: features, points, predictions, pictures.

Facts: embedding-atlas (Apple, arXiv:2505.06386) takes a Parquet file, with columns named on its command line: pictures
as bytes in a struct ``{bytes, path}`` (``--image``), vectors (``--vector``) and points (``--x``, ``--y``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from ...errors import StoreError
from ...report import Report, read_report
from ...zoo.folder import Zoo
from ...zoo.images.thumbnails import png
from ...zoo.modalities import only_pictured

PROJECTIONS = ("tsne", "umap", "pca")
BATCH = 64  # pictures that are decoded at once


def write_atlas(run: Path, out: Path, state: str = "merged", projection: pd.DataFrame | None = None) -> int:
    """Write one row for every evaluated image, task after task.

    Columns: ``id``, ``task``, ``index`` (row of the test split), ``image`` (PNG), ``label``, ``vector`` (features of
    the state), ``prediction_STATE``, ``correct_STATE`` and ``probability_STATE`` for every state, and ``projection_x``
    and ``projection_y`` where the run has a projection that knows the image.

    Args:
        run: the folder of a finished run.
        out: the Parquet file to write.
        state: whose features become ``vector``.
        projection: with columns task, index, state, x and y; by default the first that lies in the run's folder.

    Returns:
        The number of rows.

    Raises:
        StoreError: the run left no features or samples, or has no such state.
    """
    report = read_report(run)
    if not (run / "samples.parquet").is_file() or not (run / "features.safetensors").is_file():
        raise StoreError("The run left no features of its images (an example keeps none). Run its recipe.")
    samples, features = pd.read_parquet(run / "samples.parquet"), load_file(run / "features.safetensors")
    states = list(dict.fromkeys(samples["state"]))
    if not any(key.startswith(f"{state}/") for key in features):
        raise StoreError(f"The run has no features of the state '{state}'. It has {', '.join(states)}.")
    points = _points(run, state) if projection is None else projection
    zoo, rows = Zoo.open(report.recipe.zoo), 0
    only_pictured(zoo.manifest, "Atlas tables are written")
    writer: pq.ParquetWriter | None = None
    try:
        for task in report.samples:
            vectors = features.get(f"{state}/{task}/evaluate")
            if vectors is None:
                continue
            table = _task(report, zoo, task, vectors, samples[samples["task"] == task], states, points)
            writer = writer or pq.ParquetWriter(out, table.schema, compression="zstd")
            writer.write_table(table)
            rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    if not rows:
        raise StoreError("The run evaluated no images.")
    return rows


def _task(
    report: Report,
    zoo: Zoo,
    task: str,
    vectors: np.ndarray,
    samples: pd.DataFrame,
    states: list[str],
    points: pd.DataFrame | None,
) -> pa.Table:
    """Return the rows of one task, in the order of its features."""
    classes = np.array(report.tasks[task].classes, dtype=object)
    first = samples[samples["state"] == samples["state"].iloc[0]]
    index = first["index"].to_numpy()
    pictures = zoo.data[task].samples("test", index)
    files = [png(one) for start in range(0, len(index), BATCH) for one in pictures[start : start + BATCH]]
    columns: dict[str, Any] = {
        "id": [f"{task}/{row}" for row in index],
        "task": [task] * len(index),
        "index": index,
        "image": pa.array(
            [{"bytes": file, "path": f"{task}/{row}.png"} for file, row in zip(files, index, strict=True)],
            pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        ),
        "label": list(classes[first["label"].to_numpy()]),
        "vector": pa.array(list(vectors.astype(np.float32)), pa.list_(pa.float32())),
    }
    for state in states:
        found = samples[samples["state"] == state].set_index("index").reindex(index)
        known = found["prediction"].notna().to_numpy()
        predicted = found["prediction"].fillna(0).astype(int).to_numpy()
        said = np.where(known, classes[predicted], None)
        right = np.where(known, predicted == first["label"].to_numpy(), None)
        columns[f"prediction_{state}"] = pa.array(said, pa.string())
        columns[f"correct_{state}"] = pa.array(right, pa.bool_())
        columns[f"probability_{state}"] = pa.array(found["probability"].to_numpy(), pa.float64(), from_pandas=True)
    if points is not None:
        placed = points[points["task"] == task].set_index("index").reindex(index)
        columns["projection_x"] = pa.array(placed["x"].to_numpy(), pa.float64(), from_pandas=True)
        columns["projection_y"] = pa.array(placed["y"].to_numpy(), pa.float64(), from_pandas=True)
    return pa.table(columns)


def _points(run: Path, state: str) -> pd.DataFrame | None:
    """Return the points of a state in the first projection that lies in the run's folder."""
    for method in PROJECTIONS:
        file = run / "projections" / method / "projection.parquet"
        if file.is_file():
            found = pd.read_parquet(file)
            return found[found["state"] == state]
    return None
