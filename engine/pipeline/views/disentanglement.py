"""Weight disentanglement of two experts: ξ(α₁, α₂) by the ordinary encoder beside the linearised one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from ...errors import RecipeError, nearest
from ...preparation import Preparation
from ...recipe import Probe, Recipe
from ..sources import Sources
from ..steps import SHARE, A, Inputs, StepParams, apart, step
from ..viewing.base import View
from ..viewing.by_task import SampleRequest, judged
from ..viewing.on_weights import merge_only
from ..viewing.opening import of_pair
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from torch import Tensor

    from ..run.plan import RunSteps
    from ..tools import StepTools


class DisentanglementRequest(SampleRequest):
    """Request for the disentanglement error of two experts."""

    REFUSAL = "The disentanglement cannot be measured"

    first: str = Field("", title="First expert", description="By name; the recipe's first by default.")
    second: str = Field("", title="Second expert", description="By name; the recipe's second by default.")
    images: int = Field(60, ge=8, le=2000, title="Images a task", description="At most; drawn from evaluation images.")
    points: int = Field(9, ge=3, le=41, title="Points", description="Values of each α.")
    reach: float = Field(2.0, gt=0, le=5, title="Reach", description="α goes from minus this to plus this.")
    instead: Literal["", "random", "first"] = Field(
        "",
        title="In place of the second",
        description="As a control: a random vector of its length, tensor by tensor, or the first expert's own vector.",
    )
    by_task: bool = Field(False, title="Each task's part", description="Beside the sum over both tasks' images.")

    @model_validator(mode="after")
    def _two(self) -> DisentanglementRequest:
        if self.first and self.first == self.second:
            raise ValueError(f"both experts are '{self.first}'; choose two")
        return self

    @property
    def alphas(self) -> tuple[float, ...]:
        """Return the values of each α, ascending."""
        return tuple(self.reach * (2 * place / (self.points - 1) - 1) for place in range(self.points))


class DisentanglementParams(StepParams):
    """Parameters of the map."""

    experts: tuple[str, str]
    tasks: tuple[str, str]
    data: dict[str, str]  # digest of each task's images
    images: int
    probe: Probe
    digests: dict[str, str]  # of base and experts
    heads: str | None  # digest
    architecture: dict[str, Any]
    preprocess: Preparation
    alphas: tuple[float, ...]
    instead: str | None = None  # in place of the second expert's vector
    by_task: bool | None = None
    sources: Sources = apart()


@dataclass(frozen=True)
class DisentanglementInputs(Inputs[A]):
    """Inputs of the map."""

    heads: A | None = None  # where they are built


def plan(run: RunSteps, asked: DisentanglementRequest) -> str:
    """Plan the map of two experts of different tasks.

    Raises:
        RecipeError: fewer than two experts, an unknown one, or no images or heads of their tasks.
    """
    of = {run.expert_of[task]: task for task in judged(run)}
    if len(of) < 2:
        raise RecipeError("Two experts of tasks of classes with images are needed. Choose a run with more experts.")
    first = asked.first or next(name for name in of if name != asked.second)
    names = [first, asked.second or next(name for name in of if name != first)]
    for name in names:
        if name not in of:
            raise RecipeError(f"The recipe has no expert '{name}' with images. {nearest(name, of)}")
    tasks = tuple(of[name] for name in names)
    params = DisentanglementParams(
        experts=tuple(names),
        tasks=tasks,
        data={task: run.data_digests[task] for task in tasks},
        images=asked.images,
        probe=run.recipe.probe,
        digests=run.digests_of(*names),
        heads=run.digests.get("heads"),
        architecture=run.config,
        preprocess=run.preprocess,
        alphas=asked.alphas,
        instead=asked.instead or None,
        by_task=asked.by_task or None,
        sources=run.sources,
    )
    label = f"Adding {names[0]} and {names[1]}"
    return run.make(disentanglement, params, DisentanglementInputs[str](run.heads()), label)


@step(
    "disentanglement",
    label="Adding two task vectors",
    params=DisentanglementParams,
    inputs=DisentanglementInputs,
    cost=20.0,
    gpu=True,
    threads=SHARE,
)
def disentanglement(
    inputs: DisentanglementInputs[Path], params: DisentanglementParams, output: Path, tools: StepTools
) -> None:
    """Measure ξ on a grid, both ways; writes ``disentanglement.json``.

    For ``standard`` and ``linearised``: ``disagreement`` (share of images whose prediction differs, summed over both
    tasks, 0 to 2) and ``features`` (mean absolute difference of features, summed), each (G, G) with α₁ in rows.
    Where ``by_task`` is asked for, ``summands`` are both tasks' parts, each (G, G).
    """
    from ...analysis.disentanglement import disagreement, disentanglement_error, feature_distance, linear_features
    from ..viewing.addition import TaskAddition
    from ..viewing.models import pictures_of

    zoo, (first, second) = params.sources.open(), params.experts
    additions = [
        TaskAddition.of(
            zoo,
            params.architecture,
            params.experts,
            pictures_of(zoo, task, params.probe, params.images),
        )
        for task in params.tasks
    ]
    if params.instead:
        additions = [
            replace(
                at, vectors={**at.vectors, second: _stand_in(params.instead, at.vectors[first], at.vectors[second])}
            )
            for at in additions
        ]
    heads = [addition.pictures.head.classes for addition in additions]
    known: dict[tuple[int, float, float], Any] = {}

    def features(task: int, one: float, two: float) -> Any:
        if (task, one, two) not in known:
            known[task, one, two] = additions[task].features({first: one, second: two})
        return known[task, one, two]

    def report(share: float) -> None:
        tools.progress(0.9 * share, f"α = {len(params.alphas)} × {len(params.alphas)}")

    changes = [[addition.change(name) for name in params.experts] for addition in additions]
    linear = linear_features([addition.base for addition in additions], changes)
    distances = {"disagreement": disagreement(heads), "features": feature_distance}
    errors = {
        forward: {
            name: disentanglement_error(params.alphas, source, distance, report) for name, distance in distances.items()
        }
        for forward, source in (("standard", features), ("linearised", linear))
    }
    document = {
        "alphas": list(params.alphas),
        "experts": list(params.experts),
        "tasks": list(params.tasks),
        "search": [0.0, 1.0],
        **{
            forward: {name: table.sum(dim=-1).tolist() for name, table in tables.items()}
            for forward, tables in errors.items()
        },
        "images": [len(addition.labels) for addition in additions],
        "split_seed": params.probe.split_seed,
    }
    if params.by_task:
        document["summands"] = {
            forward: {name: table.permute(2, 0, 1).tolist() for name, table in tables.items()}
            for forward, tables in errors.items()
        }
    (output / "disentanglement.json").write_text(json.dumps(document))


def _stand_in(instead: str, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return what takes the place of the second expert's vector."""
    from ...merging.chance import normal

    if instead == "first":
        return first
    drawn = {
        name: normal(tuple(tensor.shape), 0, "disentanglement", name).to(tensor) for name, tensor in second.items()
    }
    return {name: part * (second[name].norm() / part.norm()) for name, part in drawn.items()}


def _two_vectors(recipe: Recipe) -> Recipe:
    """Return the recipe without what the map does not depend on."""
    chosen = merge_only(recipe)
    return chosen.model_copy(update={"transforms": (), "merge": Recipe().merge, "forward": "standard"})


def work(asked: DisentanglementRequest, sizes: Sizes) -> Work:
    """Return what the models on the grid and four derivatives, three passes each, take."""
    return Work(passes=2 * asked.images * (asked.points**2 + 6), models=3)


DISENTANGLEMENT = View(
    "disentanglement",
    "Weight disentanglement",
    DisentanglementRequest,
    plan,
    reduced=_two_vectors,
    work=work,
    needs="zoo",
    opens=of_pair("first", "second"),
)
