"""Spawning: instability over the step at which two runs of one training part, each with batches of its own.

A training is repeated with other seeds, each time as a pair of runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from ...catalog.row import BACKWARD
from ...errors import RecipeError
from ...preparation import Preparation
from ...recipe import Probe, Recipe
from ..sources import Sources
from ..steps import SHARE, A, Inputs, StepParams, apart, step
from ..viewing.base import View
from ..viewing.by_task import ImagesRequest, judged, one_of
from ..viewing.on_weights import merge_only
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools

RUNS = 2  # of a training that parts


class SpawningRequest(ImagesRequest):
    """Request for the instability of a training."""

    REFUSAL = "The instability cannot be measured"

    task: str = Field("", title="Task", description="That is trained on; the recipe's first by default.")
    steps: int = Field(60, ge=2, le=100_000, title="Steps", description="Of each training.")
    batch_size: int = Field(64, ge=1, le=8192, title="Batch size", description="Images in a step.")
    parts: tuple[int, ...] = Field((0, 15, 30), min_length=1, max_length=16, title="Parting steps")
    images: int = Field(200, ge=8, le=2000, title="Images", description="At most; drawn from the evaluation images.")
    pairs: int = Field(1, ge=1, le=20, title="Pairs", description="Trainings by other seeds, each run twice.")
    points: int = Field(5, ge=3, le=41, title="Points", description="Models between the two runs, both included.")

    @model_validator(mode="after")
    def _inside(self) -> SpawningRequest:
        if list(self.parts) != sorted(set(self.parts)) or self.parts[0] < 0 or self.parts[-1] >= self.steps:
            raise ValueError(f"name different parting steps from 0 to {self.steps - 1} in ascending order")
        return self


class SpawningParams(StepParams):
    """Parameters of the paths between runs that parted."""

    task: str
    data: str  # digest of the task's images
    images: int
    probe: Probe
    heads: str  # digest
    architecture: dict[str, Any]
    preprocess: Preparation
    steps: int
    parts: tuple[int, ...]
    pairs: int
    alphas: tuple[float, ...]
    sources: Sources = apart()


@dataclass(frozen=True)
class SpawningInputs(Inputs[A]):
    """Both runs of every pair for each parting step, as ``STEP-SEED`` by the seed after it."""

    runs: Mapping[str, A] = field(default_factory=dict)
    heads: A | None = None  # where they are built


def plan(run: RunSteps, asked: SpawningRequest) -> str:
    """Plan two trainings for each parting step and pair, and the paths between them.

    Raises:
        RecipeError: an unknown task, or one without training images.
    """
    from ..zoos.finetune import plan_heads, plan_training
    from ..zoos.request import FinetuneRequest

    tasks = judged(run)
    name = one_of(asked.task or tasks[0], tasks, run)
    if not run.zoo.data[name].has("train"):
        raise RecipeError(
            f"Task '{name}' has no training {run.zoo.modality.many}, so no training of it can part. Make a copy of the "
            "zoo to train in, on the page Zoo."
        )
    heads, task = plan_heads(run.zoo, run.store), run.zoo.manifest.task_table[name]
    made = {}
    for part in asked.parts:
        for pair, after in _seeds_of(asked.pairs):
            length = {"steps": asked.steps, "batch_size": asked.batch_size}
            config = {**length, "seed": pair, "part": part, "after": after}
            wanted = FinetuneRequest.parse({"zoo": str(run.zoo.folder), "tasks": [name], "config": config})
            made[f"{part}-{after}"] = run.add(plan_training(run.zoo, [task], wanted, run.store, heads))
    params = SpawningParams(
        task=name,
        data=run.data_digests[name],
        images=asked.images,
        probe=run.recipe.probe,
        heads=run.digests["heads"],
        architecture=run.config,
        preprocess=run.preprocess,
        steps=asked.steps,
        parts=asked.parts,
        pairs=asked.pairs,
        alphas=tuple(place / (asked.points - 1) for place in range(asked.points)),
        sources=run.sources,
    )
    return run.make(spawning, params, SpawningInputs[str](made, run.heads()), f"Between runs on {name}")


@step(
    "spawning",
    label="Between runs that parted",
    params=SpawningParams,
    inputs=SpawningInputs,
    cost=4.0,
    gpu=True,
    threads=SHARE,
)
def spawning(inputs: SpawningInputs[Path], params: SpawningParams, output: Path, tools: StepTools) -> None:
    """Measure the paths between the runs of each pair, for each parting step; writes ``spawning.json``.

    For each of ``parts``, as the mean of its ``pairs`` and for each of them: ``error`` (percent) and ``loss`` at the
    ``alphas``; ``instability``, the highest error on the path less the mean of its ends, in points; ``barrier`` of the
    loss in nats.

    Source: Frankle et al., ICML 2020, arXiv:1912.05671, §2. Departure: from a pretrained base, on evaluation images.
    """
    import torch

    from ...analysis.interpolation import Between, accuracy_and_loss
    from ...weights import open_weights
    from ...zoo.encoders.backbone import load_encoder
    from ...zoo.making.adopt import EXPERT
    from ..viewing.models import pictures_of

    pictures = pictures_of(params.sources.open(), params.task, params.probe, params.images)
    labels, found = torch.as_tensor(pictures.labels).long(), []
    whole, done = len(params.parts) * params.pairs * len(params.alphas), 0
    for part in params.parts:
        pairs = []
        for pair in range(params.pairs):
            first, second = (open_weights(inputs.runs[f"{part}-{after}"] / EXPERT) for after in _runs_of(pair))
            values = []
            for alpha in params.alphas:
                tools.progress(done / whole, f"runs that parted at step {part:,}")
                encoder = load_encoder(params.architecture, Between(first, second, alpha)).to(pictures.device)
                with torch.no_grad():
                    features = torch.cat([encoder(batch).cpu() for batch in pictures.batches()])
                values.append(accuracy_and_loss(features, pictures.head, labels))
                done += 1
            pairs.append(_path(params.alphas, values))
        found.append({"part": part, **_mean_of(pairs), "pairs": pairs})
    document = params.model_dump(mode="json", include={"task", "steps", "alphas"})
    document |= {"parts": found, "images": len(labels), "available": pictures.available}
    (output / "spawning.json").write_text(json.dumps(document))


def _runs_of(pair: int) -> range:
    """Return the seeds of a pair's runs after they part."""
    return range(RUNS * pair + 1, RUNS * (pair + 1) + 1)


def _seeds_of(pairs: int) -> list[tuple[int, int]]:
    """Return the seed before and after parting of every run."""
    return [(pair, after) for pair in range(pairs) for after in _runs_of(pair)]


def _path(alphas: Sequence[float], values: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return what accuracy (percent) and loss on the path between two runs say of it."""
    from ...analysis.interpolation import barrier

    errors, losses = [100 - accuracy for accuracy, _ in values], [loss for _, loss in values]
    instability = max(errors) - (errors[0] + errors[-1]) / 2
    return {"error": errors, "loss": losses, "instability": instability, "barrier": barrier(alphas, losses)}


def _mean_of(paths: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of each number over paths."""
    import numpy as np

    return {name: np.mean([path[name] for path in paths], axis=0).tolist() for name in paths[0]}


def _one_task(recipe: Recipe) -> Recipe:
    """Return the recipe without what the trainings do not depend on."""
    chosen = merge_only(recipe)
    return chosen.model_copy(update={"transforms": (), "merge": Recipe().merge, "forward": "standard"})


def work(asked: SpawningRequest, sizes: Sizes) -> Work:
    """Return what both trainings of every parting step take, and the models between their ends."""
    trained = BACKWARD * RUNS * asked.steps * asked.batch_size
    return Work(passes=asked.pairs * len(asked.parts) * (trained + asked.points * asked.images))


SPAWNING = View(
    "spawning",
    "Instability of a training",
    SpawningRequest,
    plan,
    reduced=_one_task,
    work=work,
    needs="zoo",
)
