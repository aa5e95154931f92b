"""Accuracy over the scaling coefficient: task addition by the ordinary encoder beside the linearised one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from ...preparation import Preparation
from ...recipe import Probe, Recipe
from ..sources import Sources
from ..steps import SHARE, A, Inputs, StepParams, apart, step
from ..viewing.base import View
from ..viewing.by_task import GatherInputs, GatherParams, ImagesRequest, gather, judged, one_of
from ..viewing.on_weights import merge_only
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools

GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5)
DERIVATIVE = 3  # passes that a derivative along a vector costs


class ScalingRequest(ImagesRequest):
    """Request for the accuracy over the scaling coefficient."""

    REFUSAL = "The curves cannot be drawn"

    images: int = Field(
        60, ge=8, le=2000, title="Images a task", description="At most; drawn from the evaluation images."
    )
    scalings: tuple[float, ...] = Field(GRID, title="Scaling coefficients λ", description="From −2 to 5.")

    @field_validator("scalings")
    @classmethod
    def _in_range(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not 1 <= len(value) <= 64 or min(value) < -2 or max(value) > 5 or list(value) != sorted(set(value)):
            raise ValueError("give 1 to 64 different numbers from -2 to 5 in ascending order")
        return value


class ScalingParams(StepParams):
    """Parameters of the curves of one task."""

    task: str
    data: str  # digest of the task's images
    images: int
    probe: Probe
    experts: tuple[tuple[str, float], ...]  # name and weight
    digests: dict[str, str]  # of base and experts
    own: str  # the task's own expert
    heads: str | None  # digest
    architecture: dict[str, Any]
    preprocess: Preparation
    scalings: tuple[float, ...]
    sources: Sources = apart()


@dataclass(frozen=True)
class ScalingInputs(Inputs[A]):
    """Inputs of the curves of one task."""

    heads: A | None = None  # where they are built


def plan(run: RunSteps, asked: ScalingRequest) -> str:
    """Plan the curves of every in-domain task.

    Raises:
        RecipeError: no images or heads of an expert's task of classes.
    """
    tasks = judged(run)
    if asked.task:
        tasks = [one_of(asked.task, tasks, run)]
    inputs, keys = ScalingInputs[str](run.heads()), {}
    for task in tasks:
        params = ScalingParams(
            task=task,
            data=run.data_digests[task],
            images=asked.images,
            probe=run.recipe.probe,
            experts=run.experts,
            digests=run.digests_of(*(name for name, _ in run.experts)),
            own=run.expert_of[task],
            heads=run.digests.get("heads"),
            architecture=run.config,
            preprocess=run.preprocess,
            scalings=asked.scalings,
            sources=run.sources,
        )
        keys[task] = run.make(scaling, params, inputs, f"Adding task vectors on {task}")
    together = GatherParams(view=scaling.name, tasks=tuple(keys), split_seed=run.recipe.probe.split_seed)
    return run.make(gather, together, GatherInputs[str](keys))


@step(
    "scaling",
    label="Adding task vectors",
    params=ScalingParams,
    inputs=ScalingInputs,
    cost=8.0,
    gpu=True,
    threads=SHARE,
)
def scaling(inputs: ScalingInputs[Path], params: ScalingParams, output: Path, tools: StepTools) -> None:
    """Measure task addition on one task at every λ, by the ordinary and by the linearised encoder.

    One Jacobian-vector product for each expert gives the linearised model at every λ and with each expert left out.
    Writes ``scaling.json``: ``standard`` and ``linearised`` with ``accuracy`` (percent) and ``loss`` (nats) over the
    ``scalings``, ``without`` (linearised accuracy at λ = 1 without each expert), the own ``expert``'s accuracy both
    ways and its ``departure`` ‖f − f_lin‖ / ‖f − f_0‖.
    """
    from ...analysis.interpolation import accuracy_and_loss
    from ...analysis.linear_path import along, departure, without_each
    from ..viewing.addition import TaskAddition
    from ..viewing.models import pictures_of

    zoo, names, weights = params.sources.open(), [name for name, _ in params.experts], dict(params.experts)
    pictures = pictures_of(zoo, params.task, params.probe, params.images)
    addition = TaskAddition.of(zoo, params.architecture, names, pictures)
    work = len(names) + len(params.scalings)
    changes = {}
    for place, name in enumerate(names):
        tools.progress(place / work, f"{params.task}, derivative towards {name}")
        changes[name] = addition.change(name)
    weighted = {name: weights[name] * change for name, change in changes.items()}
    given = (addition.base, addition.stacked(weighted), pictures.head, addition.labels)
    ordinary = []
    for place, value in enumerate(params.scalings):
        tools.progress((len(names) + place) / work, f"{params.task}, λ = {value:g}")
        scaled = {name: value * weight for name, weight in weights.items()}
        ordinary.append(accuracy_and_loss(addition.features(scaled), *given[2:]))
    expert, linear = addition.features({params.own: 1.0}), addition.base + changes[params.own]
    document = {
        "scalings": list(params.scalings),
        "standard": _columns(ordinary),
        "linearised": _columns(along(*given, params.scalings)),
        "experts": names,
        "without": without_each(*given, 1.0),
        "expert": {
            kind: accuracy_and_loss(features, *given[2:])[0]
            for kind, features in (("standard", expert), ("linearised", linear))
        },
        "departure": departure(addition.base, changes[params.own], expert),
        "images": len(pictures.labels),
        "available": pictures.available,
    }
    (output / "scaling.json").write_text(json.dumps(document))


def _columns(curve: list[tuple[float, float]]) -> dict[str, list[float]]:
    """Return accuracies and losses of a curve."""
    return {"accuracy": [accuracy for accuracy, _ in curve], "loss": [loss for _, loss in curve]}


def _task_addition(recipe: Recipe) -> Recipe:
    """Return the recipe without what the curves do not depend on; runs of other merges share them."""
    chosen = merge_only(recipe)
    return chosen.model_copy(update={"transforms": (), "merge": Recipe().merge, "forward": "standard"})


def work(asked: ScalingRequest, sizes: Sizes) -> Work:
    """Return what the models on the curves and the experts' derivatives, three passes each, take."""
    models = len(asked.scalings) + DERIVATIVE * sizes.experts + 2
    tasks = 1 if asked.task else len(sizes.in_domain)
    return Work(passes=models * sizes.looked_at(asked.images, asked.task), models=tasks * (sizes.experts + 1))


SCALING = View("scaling", "Accuracy over λ", ScalingRequest, plan, reduced=_task_addition, work=work, needs="zoo")
