"""Sharpness of a task's experts: the loss along random directions and along the other experts' task vectors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ...errors import RecipeError
from ...preparation import Preparation
from ...recipe import Probe, Recipe
from ..sources import Sources
from ..steps import SHARE, A, Inputs, StepParams, apart, step
from ..viewing.base import View
from ..viewing.by_task import ImagesRequest, judged, one_of
from ..viewing.on_weights import merge_only
from ..viewing.opening import Opening, Settings
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools


class SharpnessRequest(ImagesRequest):
    """Request for the loss around a task's experts."""

    REFUSAL = "The loss around experts cannot be measured"

    task: str = Field("", title="Task", description="The recipe's first by default.")
    images: int = Field(60, ge=8, le=2000, title="Images", description="At most; drawn from the evaluation images.")
    draws: int = Field(3, ge=1, le=50, title="Random directions", description="Their losses are averaged.")
    points: int = Field(7, ge=3, le=41, title="Points", description="Distances from 0 to the reach.")
    reach: float = Field(1.0, gt=0, le=5, title="Reach", description="In task vectors of the other experts.")
    seed: int = Field(0, ge=0, title="Seed", description="Of the random directions.")


class SharpnessParams(StepParams):
    """Parameters of the loss around a task's experts."""

    task: str
    data: str  # digest of the task's images
    images: int
    probe: Probe
    experts: dict[str, str]  # recipe → the task's expert
    others: tuple[str, ...]  # the other tasks' experts in the recipe
    digests: dict[str, str]  # of base and experts
    heads: str | None  # digest
    architecture: dict[str, Any]
    preprocess: Preparation
    distances: tuple[float, ...]
    draws: int
    seed: int
    sources: Sources = apart()


@dataclass(frozen=True)
class SharpnessInputs(Inputs[A]):
    """Inputs of the loss around a task's experts."""

    heads: A | None = None  # where they are built


def plan(run: RunSteps, asked: SharpnessRequest) -> str:
    """Plan the loss around every expert that the zoo has of a task, whatever its recipe.

    Raises:
        RecipeError: an unknown task, or a recipe with one expert.
    """
    from ...zoo.making.records import by_recipe

    tasks = judged(run)
    task = one_of(asked.task or tasks[0], tasks, run)
    own = {name: of[task] for name, of in by_recipe(run.zoo.manifest.experts).items() if task in of}
    table = run.zoo.manifest.expert_table
    others = tuple(name for name, _ in run.experts if table[name].task != task)
    if not others:
        raise RecipeError(
            "A recipe with two experts or more of different tasks is needed: directions are the other tasks' vectors."
        )
    names = dict.fromkeys([*own.values(), *others])
    params = SharpnessParams(
        task=task,
        data=run.data_digests[task],
        images=asked.images,
        probe=run.recipe.probe,
        experts=own,
        others=others,
        digests={name: run.store.digest_file(run.zoo.weights_path(name)) for name in ("base", *names)},
        heads=run.digests.get("heads"),
        architecture=run.config,
        preprocess=run.preprocess,
        distances=tuple(asked.reach * place / (asked.points - 1) for place in range(asked.points)),
        draws=asked.draws,
        seed=asked.seed,
        sources=run.sources,
    )
    return run.make(sharpness, params, SharpnessInputs[str](run.heads()), f"Around the experts of {task}")


@step(
    "sharpness",
    label="Walking away from experts",
    params=SharpnessParams,
    inputs=SharpnessInputs,
    cost=10.0,
    gpu=True,
    threads=SHARE,
)
def sharpness(inputs: SharpnessInputs[Path], params: SharpnessParams, output: Path, tools: StepTools) -> None:
    """Measure the loss at growing distance from each expert; writes ``sharpness.json``.

    By recipe: ``others`` (one curve for each other expert's τ) and ``random`` (one for each draw); losses in nats at
    the ``distances``. A random direction has, tensor by tensor, the mean norm of the other experts' τ, so distances
    compare.
    """
    from ...analysis.interpolation import accuracy_and_loss
    from ...merging.chance import normal
    from ..viewing.addition import TaskAddition
    from ..viewing.models import pictures_of

    zoo = params.sources.open()
    pictures = pictures_of(zoo, params.task, params.probe, params.images)
    names = dict.fromkeys([*params.experts.values(), *params.others])
    addition = TaskAddition.of(zoo, params.architecture, names, pictures)
    vectors = dict(addition.vectors)
    for draw in range(params.draws):
        vectors[f"random {draw}"] = {
            key: _of_norm(
                normal(tuple(tensor.shape), params.seed, "sharpness", str(draw), key).to(tensor),
                sum(vectors[name][key].norm() for name in params.others) / len(params.others),
            )
            for key, tensor in vectors[params.others[0]].items()
        }
    walk = TaskAddition(addition.encoder, vectors, pictures)
    directions = {"others": list(params.others), "random": [f"random {draw}" for draw in range(params.draws)]}
    total = len(params.experts) * sum(map(len, directions.values()))
    found: dict[str, Any] = {}
    done = 0
    for recipe, expert in params.experts.items():
        found[recipe] = {"expert": expert}
        for kind, chosen in directions.items():
            curves = []
            for direction in chosen:
                tools.progress(done / total, f"{expert} towards {direction}")
                done += 1
                steps = [
                    accuracy_and_loss(walk.features(_at(expert, direction, d)), pictures.head, walk.labels)
                    for d in params.distances
                ]
                curves.append([loss for _, loss in steps])
            found[recipe][kind] = curves
    document = {
        "task": params.task,
        "distances": list(params.distances),
        "others": list(params.others),
        "recipes": found,
        "images": len(pictures.labels),
        "available": pictures.available,
        "split_seed": params.probe.split_seed,
        "seed": params.seed,
    }
    (output / "sharpness.json").write_text(json.dumps(document))


def _at(expert: str, direction: str, distance: float) -> dict[str, float]:
    return {expert: 1.0, direction: distance} if direction != expert else {expert: 1.0 + distance}


def _of_norm(tensor: Any, norm: Any) -> Any:
    length = tensor.norm()
    return tensor * (norm / length) if length > 0 else tensor


def _around(recipe: Recipe) -> Recipe:
    """Return the recipe without what the walk does not depend on."""
    chosen = merge_only(recipe)
    return chosen.model_copy(update={"transforms": (), "merge": Recipe().merge, "forward": "standard"})


def work(asked: SharpnessRequest, sizes: Sizes) -> Work:
    """Return what the models on the walk of one expert take; a zoo with more recipes has more experts of a task."""
    directions = sizes.experts - 1 + asked.draws
    return Work(passes=directions * asked.points * asked.images, models=sizes.experts + 1)


def _opened(opening: Opening) -> Settings:
    """Ask for the first task."""
    return [{"task": opening.judged[0]}] if opening.pair else []


SHARPNESS = View(
    "sharpness", "Loss around experts", SharpnessRequest, plan, reduced=_around, work=work, needs="zoo", opens=_opened
)
