"""Projections: views on a finished run, keyed under it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from safetensors.numpy import load_file

from ...errors import RecipeError
from ...recipe import Request
from ...report import read_report
from ...store import step_key
from ..steps import NOTHING, Step

if TYPE_CHECKING:
    from ..steps import StepTools

VERSION = 1
TITLES = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}


class ProjectionRequest(Request):
    """Which features are projected, and how."""

    REFUSAL = "The projection cannot be computed"

    method: Literal["pca", "tsne", "umap"] = "tsne"
    task: str = "all"
    images: int = Field(256, ge=10, le=20_000, title="Images", description="Over all chosen tasks, equally.")
    perplexity: float = Field(30.0, gt=1, le=500, title="Perplexity", description="t-SNE: size of a neighbourhood.")
    neighbours: int = Field(15, ge=2, le=500, title="Neighbours", description="UMAP: size of a neighbourhood.")
    minimum_distance: float = Field(0.1, ge=0, le=1, title="Minimum distance", description="UMAP: how tight.")
    seed: int = Field(0, ge=0)

    @property
    def title(self) -> str:
        """Name of the method as it is written."""
        return TITLES[self.method]

    def params(self) -> dict[str, Any]:
        """What identifies the projection: parameters of other methods are left out."""
        used = {"method", "task", "images", "seed"}
        used |= {"tsne": {"perplexity"}, "umap": {"neighbours", "minimum_distance"}}.get(self.method, set())
        return self.model_dump(mode="json", include=used)


def projection_step(
    view: ProjectionRequest, run: str, *, inputs: Mapping[str, str] = NOTHING, sources: Mapping[str, str] = NOTHING
) -> Step:
    """The one step of a projection, keyed under the run whose features it shows."""
    params = {**view.params(), "run": run}
    return Step(
        name="projection",
        key=step_key("projection", VERSION, params, {}, "cpu/float32"),
        params={**params, "sources": dict(sources)},
        inputs=inputs,
        label=f"Projecting with {view.title}",
        weight=4.0,
        version=VERSION,
    )


def projection(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Project a run's features jointly over all its states.

    Writes ``projection.parquet`` (state, task, index, x, y) and ``projection.json`` (parameters, n of N,
    trustworthiness and neighbour overlap).
    """
    folder = Path(inputs["bundle"]) if "bundle" in inputs else Path(params["sources"]["folder"])
    view = ProjectionRequest.parse({k: v for k, v in params.items() if k in ProjectionRequest.model_fields})
    project_folder(folder, view, output, tools)


def project_folder(folder: Path, view: ProjectionRequest, output: Path, tools: StepTools) -> None:
    """Project the features in a run's folder and write the result beside ``output``."""
    import pandas as pd

    from ...analysis.projection import joint_projection, sample_rows

    report = read_report(folder)
    features = load_file(folder / "features.safetensors")
    states = [state for state in report.states() if state != "multitask"]
    tasks = [name for name in report.tasks if f"expert/{name}/evaluate" in features]
    if view.task != "all":
        if view.task not in report.tasks:
            raise RecipeError(f"The run has no task '{view.task}'.")
        tasks = [view.task]
    rows = sample_rows({task: len(features[f"pretrained/{task}/evaluate"]) for task in tasks}, view.images, view.seed)
    chosen = {
        state: {task: features[f"{state}/{task}/evaluate"][rows[task]] for task in tasks}
        for state in states
        if all(f"{state}/{task}/evaluate" in features for task in tasks)
    }
    tools.progress(0.05, f"{view.title} of {sum(map(len, rows.values()))} images in {len(chosen)} states")
    table = pd.read_parquet(folder / "samples.parquet", columns=["task", "state", "index"])
    table = table[table.state == "pretrained"]
    frame, metrics = joint_projection(
        chosen,
        {task: table[table.task == task]["index"].to_numpy()[rows[task]] for task in tasks},
        method=view.method,
        perplexity=view.perplexity,
        neighbours=view.neighbours,
        minimum_distance=view.minimum_distance,
        seed=view.seed,
    )
    frame.to_parquet(output / "projection.parquet", index=False)
    available = {task: len(features[f"pretrained/{task}/evaluate"]) for task in tasks}
    document = {
        "params": view.params(),
        "states": list(chosen),
        "images": {task: len(rows[task]) for task in tasks},
        "available": available,
        "metrics": metrics,
    }
    (output / "projection.json").write_text(json.dumps(document))
