"""Projections: views on a finished run, keyed under it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from safetensors.numpy import load_file

from ...errors import RecipeError
from ...mounts import here
from ...recipe import REFERENCE_STATES, Request
from ...report import read_report
from ..steps import UNHASHED, A, Inputs, Step, StepParams, apart, step

if TYPE_CHECKING:
    from ..tools import StepTools

TITLES = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}


class ProjectionRequest(Request):
    """Request for a projection of a run's features."""

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
        """Return the name of the method as it is written."""
        return TITLES[self.method]

    def params(self) -> dict[str, Any]:
        """Return what identifies the projection: parameters of other methods are left out."""
        used = {"method", "task", "images", "seed"}
        used |= {"tsne": {"perplexity"}, "umap": {"neighbours", "minimum_distance"}}.get(self.method, set())
        return self.model_dump(mode="json", include=used)


class ProjectionParams(StepParams):
    """Parameters of the projection step."""

    view: ProjectionRequest
    run: str  # key of what the run left
    folder: str = apart("")  # of the run, where no step of the plan makes it

    def identity(self) -> dict[str, Any]:
        """Return what the projection depends on, and the run whose features it shows."""
        return {**self.view.params(), "run": self.run}


@dataclass(frozen=True)
class ProjectionInputs(Inputs[A]):
    """Inputs of the projection step."""

    bundle: A | None = field(default=None, metadata=UNHASHED)


def projection_step(view: ProjectionRequest, run: str, *, folder: str = "") -> Step:
    """Plan a projection, keyed under the run whose features it shows.

    Args:
        view: what is projected, and how.
        run: key of what the run left.
        folder: where that lies, when no step of the plan makes it.
    """
    params = ProjectionParams(view=view, run=run, folder=folder)
    inputs = ProjectionInputs[str](bundle=None if folder else run)
    return projection.plan(params, inputs, label=f"Projecting with {view.title}", device="cpu/float32")


@step("projection", label="Projecting", params=ProjectionParams, inputs=ProjectionInputs, cost=4.0)
def projection(inputs: ProjectionInputs[Path], params: ProjectionParams, output: Path, tools: StepTools) -> None:
    """Project a run's features jointly over all its states.

    Writes ``projection.parquet`` (state, task, index, x, y) and ``projection.json`` (parameters, n of N,
    trustworthiness and neighbour overlap).
    """
    project_folder(inputs.bundle or Path(here(params.folder)), params.view, output, tools)


def project_folder(folder: Path, view: ProjectionRequest, output: Path, tools: StepTools) -> None:
    """Project the features in a run's folder and write the result beside ``output``."""
    import pandas as pd

    from ...analysis.projection import joint_projection, sample_rows

    report = read_report(folder)
    features = load_file(folder / "features.safetensors")
    states = [state for state in report.states() if state not in REFERENCE_STATES]
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
