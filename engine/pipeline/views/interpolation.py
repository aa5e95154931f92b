"""Interpolation: accuracy and loss along the straight path between two models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ...errors import RecipeError, nearest
from ...preparation import Preparation
from ...recipe import Probe
from ..run.linearised import refuse_inside
from ..sources import Sources
from ..steps import INLINED, SHARE, A, Inputs, StepParams, apart, step
from ..viewing.base import View, ViewRequest
from ..viewing.by_task import judged
from ..viewing.on_weights import MERGED, PRETRAINED, merge_only, model_of
from ..viewing.opening import Opening, Settings
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools


class InterpolationRequest(ViewRequest):
    """Request for a path between two models: its ends, and where it is evaluated."""

    REFUSAL = "The path cannot be computed"

    start: str = PRETRAINED
    end: str = MERGED
    points: int = Field(11, ge=3, le=101, title="Points", description="Models on the path, both ends included.")
    images: int = Field(
        200, ge=2, le=100_000, title="Images a task", description="At most; drawn evenly over classes, as in a run."
    )

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> InterpolationRequest:
        """Validate a request.

        Raises:
            RecipeError: naming the place at fault.
        """
        request = super().parse(document)
        if request.start == request.end:
            raise RecipeError(f"The path starts and ends at '{request.start}'. Choose two different models.")
        return request

    @property
    def alphas(self) -> list[float]:
        """Return the positions on the path, from 0 to 1."""
        return [number / (self.points - 1) for number in range(self.points)]


class PathParams(StepParams):
    """Parameters of the path on one task."""

    start: str
    end: str
    alphas: tuple[float, ...]  # positions from 0 to 1
    task: str
    data: str  # digest of the task's images
    probe: Probe
    digests: dict[str, str]  # of the ends that are stored
    heads: str  # digest
    architecture: dict[str, Any]
    preprocess: Preparation
    sources: Sources = apart()


@dataclass(frozen=True)
class PathInputs(Inputs[A]):
    """The merge, where an end of the path is the merged model."""

    merge: A | None = None
    heads: A | None = None  # where they are built


class PathsParams(StepParams):
    """Parameters of the step that puts tasks together."""

    start: str
    end: str
    alphas: tuple[float, ...]
    tasks: tuple[str, ...]
    split_seed: int


@dataclass(frozen=True)
class PathsInputs(Inputs[A]):
    """The paths by task."""

    tasks: Mapping[str, A] = field(default_factory=dict, metadata=INLINED)


def plan(run: RunSteps, asked: InterpolationRequest) -> str:
    """Plan accuracy along the path between two models of a recipe's zoo.

    Raises:
        RecipeError: a model that the recipe does not have or that the run evaluates linearised, or nothing to score.
    """
    known = [PRETRAINED, MERGED, *(name for name, _ in run.experts), *run.references]
    ends = (asked.start, asked.end)
    for name in ends:
        if name not in known:
            raise RecipeError(f"The recipe has no model '{name}'. {nearest(name, known)}")
    refuse_inside([name for name in ends if run.linearised(name)])
    tasks = judged(run)
    merge = run.merge(run.recipe.seeds[0]) if MERGED in ends else None
    inputs = PathInputs[str](merge, run.heads())
    stored = sorted({"base" if name == PRETRAINED else name for name in ends if name != MERGED})
    limit = run.recipe.probe.samples_per_task
    fewer = asked.images if limit == "all" else min(limit, asked.images)
    probe = run.recipe.probe.model_copy(update={"samples_per_task": fewer})
    shared = {"start": asked.start, "end": asked.end, "alphas": tuple(asked.alphas)}
    paths = {}
    for task in tasks:
        params = PathParams(
            **shared,
            task=task,
            data=run.data_digests[task],
            probe=probe,
            digests={name: run.digests[name] for name in stored},
            heads=run.digests["heads"],
            architecture=run.config,
            preprocess=run.preprocess,
            sources=run.sources,
        )
        paths[task] = run.make(path, params, inputs, f"From {asked.start} to {asked.end} on {task}")
    together = PathsParams(**shared, tasks=tuple(paths), split_seed=probe.split_seed)
    return run.make(interpolation, together, PathsInputs[str](paths))


@step("path", label="Following a path", params=PathParams, inputs=PathInputs, cost=2.0, gpu=True, threads=SHARE)
def path(inputs: PathInputs[Path], params: PathParams, output: Path, tools: StepTools) -> None:
    """Measure one task's accuracy and loss along the straight path between two models; writes ``path.json``.

    Every model on the path sees the same evaluation images.
    """
    import torch

    from ...analysis.interpolation import Between, accuracy_and_loss, barrier
    from ...features import choose_device, encode
    from ...zoo.encoders.backbone import architecture, load_encoder, preprocessing
    from ...zoo.images.splits import select

    zoo, task, alphas = params.sources.open(), params.task, params.alphas
    start, end = (model_of(zoo, name, inputs.merge) for name in (params.start, params.end))
    config, device = architecture(zoo.folder, zoo.manifest), choose_device()
    preprocess = preprocessing(zoo.folder, zoo.manifest)
    heads, warnings = zoo.heads([task])
    chosen = select(zoo.data[task], params.probe)
    rows = chosen.test[chosen.evaluate_rows]
    images, labels = zoo.data[task].samples("test", rows), zoo.data[task].labels("test")[rows]
    values = []
    for place, alpha in enumerate(alphas):
        tools.progress(place / len(alphas), f"{task}, model {place + 1} of {len(alphas)}")
        encoder = load_encoder(config, Between(start, end, alpha))
        features = encode(encoder, images, preprocess, device, lambda *_: tools.check())
        values.append(accuracy_and_loss(features, heads[task], torch.as_tensor(labels).long()))
    accuracy, loss = (list(column) for column in zip(*values, strict=True))
    document = {"accuracy": accuracy, "loss": loss, "barrier": barrier(alphas, loss), "warnings": warnings}
    document |= {"images": len(rows), "available": chosen.available}
    (output / "path.json").write_text(json.dumps(document))


@step("interpolation", label="Putting the paths together", params=PathsParams, inputs=PathsInputs, cost=0.1)
def interpolation(inputs: PathsInputs[Path], params: PathsParams, output: Path, tools: StepTools) -> None:
    """Put the paths of all tasks together; writes ``interpolation.json``."""
    tasks = {task: json.loads((inputs.tasks[task] / "path.json").read_text("utf-8")) for task in params.tasks}
    document = params.model_dump(mode="json", exclude={"tasks"})
    (output / "interpolation.json").write_text(json.dumps({**document, "tasks": tasks}))


def work(asked: InterpolationRequest, sizes: Sizes) -> Work:
    """Return what the models on the path take."""
    return Work(passes=asked.points * sizes.looked_at(asked.images), models=2 * len(sizes.in_domain))


def _opened(opening: Opening) -> Settings:
    """Ask for the way from the pretrained to the merged model, where that is one model of the ordinary encoder."""
    report = opening.report
    if not opening.judged or report.merged.kind != "static" or report.recipe.forward == "linearised":
        return []
    return [{"start": PRETRAINED, "end": MERGED, "points": 11, "images": 200}]


INTERPOLATION = View(
    "interpolation",
    "Path between models",
    InterpolationRequest,
    plan,
    reduced=merge_only,
    work=work,
    needs="merge",
    opens=_opened,
)
