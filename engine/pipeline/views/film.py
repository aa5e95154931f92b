"""Films: a run seen over the values of one parameter, exact at every value, small enough to be scrubbed in a browser.

A film is a kind of sweep: its frames are steps, computed side by side and found again. Where few images are looked at,
each is made in memory (see :mod:`..preview.frames`); else, and where something inside the encoder learns, by the steps
of its run, which runs and sweeps share. A value that a method refuses, or that fails, leaves a frame with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from ...analysis.film import Map
from ...catalog import resolve
from ...errors import EngineError, RecipeError
from ...recipe import Probe, Recipe
from ...sweeps import MAX_POINTS, Setting, numbered
from ...sweeps.frames import SAME_IMAGES, SEED, film_title, frames_of, shows_same_images
from ...sweeps.grid import value_text
from ..preview.request import chance_in
from ..sources import Sources
from ..steps import INLINED, A, Inputs, StepParams, apart, closure, step
from ..viewing.base import View, ViewRequest
from ..viewing.by_task import need_heads
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools
    from ..viewing.reel import Features

PER_TASK = 32
CHANCE = "Nothing but the training seed changes: what moves is chance."


class FilmRequest(ViewRequest):
    """Request for a film."""

    REFUSAL = "The film cannot be made"

    place: str = Field("merge.params.scaling", min_length=1, max_length=200, title="Parameter")
    values: tuple[Any, ...] = Field(
        tuple(round(0.05 * number, 2) for number in range(21)), min_length=2, max_length=MAX_POINTS
    )
    order: tuple[str, ...] = ()  # experts as they join, for ``experts``; default: as the recipe names them
    images: int | Literal["all"] = Field(
        PER_TASK, title="Images a task", description="Looked at, and adapted on; all: as the recipe says."
    )
    points: int = Field(PER_TASK, ge=4, le=2000, title="Points a task", description="Images that are drawn.")
    map: Map = "pca"
    seed: int = Field(0, ge=0)

    @field_validator("place")
    @classmethod
    def _same_images(cls, place: str) -> str:
        if not shows_same_images(place):
            raise ValueError(SAME_IMAGES)
        return place

    @field_validator("values")
    @classmethod
    def _once(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        kept = Setting(place="-", values=values).values
        if len(kept) < 2:
            raise ValueError("a film needs at least two values")
        return kept

    @field_validator("images")
    @classmethod
    def _enough(cls, images: int | str) -> int | str:
        if isinstance(images, int) and images < 4:
            raise ValueError("at least 4 images a task are needed")
        return images

    @property
    def sampled(self) -> Recipe:
        """Return the recipe on as many images as are looked at."""
        own = self.recipe.probe.samples_per_task
        if self.images == "all" or (own != "all" and own <= self.images):
            return self.recipe
        return self.recipe.model_copy(
            update={"probe": self.recipe.probe.model_copy(update={"samples_per_task": self.images})}
        )


class FilmParams(StepParams):
    """Parameters of the film step."""

    place: str
    values: tuple[Any, ...]
    failed: dict[int, str]  # frame → why there is nothing
    tasks: tuple[str, ...]
    calibrators: tuple[str, ...]
    probe: Probe
    data: dict[str, str]  # digests of images by task
    heads: str | None  # digest
    points: int
    map: Map
    seed: int
    run_seed: int
    chance: str
    title: str = apart("")
    sources: Sources = apart()


@dataclass(frozen=True)
class FrameInputs(Inputs[A]):
    """Artefacts of one frame."""

    merged: Mapping[str, A] = field(default_factory=dict)  # features by task
    calibrator: Mapping[str, A] = field(default_factory=dict)  # by name
    together: A | None = None  # features of all tasks, in place of those; calibrators are then those of several frames


@dataclass(frozen=True)
class FilmInputs(Inputs[A]):
    """Artefacts of all frames, and features by state and task that no frame changes."""

    frames: Mapping[int, FrameInputs[A]] = field(default_factory=dict)
    still: Mapping[str, Mapping[str, A]] = field(default_factory=dict, metadata=INLINED)
    heads: A | None = None  # where they are built


def plan(run: RunSteps, asked: FilmRequest, lost: Mapping[str, str] = MappingProxyType({})) -> str:
    """Plan the runs' steps of every frame, and the step that makes the film.

    Args:
        run: of the recipe.
        asked: what is varied.
        lost: key of a step that failed → why; frames that need it are marked.

    Raises:
        RecipeError: no frame can be made, or nothing is scored.
    """
    from ..preview.frames import plan_shots, shot_of
    from ..run.plan import RunSteps
    from ..run.summing import sum_where_cheaper

    run = RunSteps(run.zoo, resolve(asked.sampled), run.store, run.steps)
    need_heads(run)
    runs, shots, failed = {}, {}, {}
    for frame in frames_of(run.recipe, asked.place, asked.values, _in_order(run, asked.order)):
        if frame.recipe is None:
            failed[frame.number] = frame.refused
            continue
        try:
            runs[frame.number] = run.beside(frame.recipe)
        except EngineError as error:
            failed[frame.number] = str(error)
    sum_where_cheaper(runs.values())
    for number, own in runs.items():
        try:
            shots[number] = shot_of(own, asked.images)
        except EngineError as error:
            failed[number] = str(error)
    made, fell = plan_shots(run, {number: shot for number, shot in shots.items() if shot is not None}, lost)
    failed |= fell
    inputs = {}
    for number in sorted(shots.keys() - failed.keys()):
        if number in made:
            inputs[number] = FrameInputs[str](calibrator=made[number].calibrators, together=made[number].features)
            continue
        own = runs[number].seed(runs[number].recipe.seeds[0])
        needed = closure(run.steps, [*own.features.get("merged", {}).values(), *own.calibrator.values()])
        reason = next((lost[one.key] for one in needed if one.key in lost), None)
        if reason is None:
            inputs[number] = FrameInputs[str](own.features.get("merged", {}), own.calibrator)
        else:
            failed[number] = reason
    if not inputs:
        raise RecipeError(f"No frame of the film can be made. {next(iter(failed.values()))}")
    still = runs[next(iter(inputs))].seed(run.recipe.seeds[0]).features
    moves_not = {state: still[state] for state in ("pretrained", "expert")}
    return _film(run, asked, inputs, moves_not, failed, run.recipe.seeds[0])


def _film(
    run: RunSteps,
    asked: FilmRequest,
    frames: Mapping[int, FrameInputs[str]],
    still: Mapping[str, Mapping[str, str]],
    failed: Mapping[int, str],
    seed: int,
) -> str:
    tasks = tuple(still["pretrained"])
    params = FilmParams(
        place=asked.place,
        values=asked.values,
        failed=dict(failed),
        tasks=tasks,
        calibrators=tuple(call.name for call in run.recipe.calibrators if call.on == "merged"),
        probe=run.recipe.probe,
        data={task: run.data_digests[task] for task in tasks},
        heads=run.digests.get("heads"),
        points=asked.points,
        map=asked.map,
        seed=asked.seed if asked.map != "pca" else 0,
        run_seed=seed,
        chance=CHANCE if asked.place == SEED else chance_in(run.recipe, seed),
        title=film_title(run.recipe, asked.place),
        sources=run.sources,
    )
    return run.make(film, params, FilmInputs[str](frames, still, run.heads()))


def drawn_states(document: Mapping[str, Any], recipe: Recipe) -> tuple[str, ...]:
    """Return the states that are drawn of a film: merged, the calibrator that it is about or the last one, expert.

    Args:
        document: that the film's step wrote.
        recipe: of the run.
    """
    states, place = document["states"], numbered(recipe, document["place"])
    calibrators = [state for state in states if state not in ("pretrained", "merged", "expert")]
    known = {f"calibrators.{number}": call.name for number, call in enumerate(recipe.calibrators)}
    about = known.get(place.rpartition(".params.")[0])
    corrected = about if about in calibrators else next(reversed(calibrators), None)
    return tuple(state for state in ("merged", corrected, "expert") if state in states)


def _in_order(run: RunSteps, order: Iterable[str]) -> list[tuple[str, float]]:
    """Return experts and weights in the order in which they join.

    Raises:
        RecipeError: not the recipe's experts, each once.
    """
    weights, names = dict(run.experts), list(order) or [name for name, _ in run.experts]
    if sorted(names) != sorted(weights):
        raise RecipeError(f"The order names {', '.join(names)}; name each of {', '.join(weights)} once.")
    return [(name, weights[name]) for name in names]


@step("film", label="Making the film", params=FilmParams, inputs=FilmInputs, cost=2.0, version=3)
def film(inputs: FilmInputs[Path], params: FilmParams, output: Path, tools: StepTools) -> None:
    """Gather the frames: points in one map, predictions, distances to the expert, accuracies and biases.

    Writes ``film.json`` and ``film.safetensors``: ``task``, ``index`` and ``label`` of the n images that are drawn;
    for each state ``STATE/points`` int16 (frames, n, 2), ``STATE/predictions`` (frames, n) and ``STATE/shift`` uint16
    (frames, n), Euclidean distances to the expert; states that stand still have one frame. See
    :mod:`engine.analysis.film` for the units. Accuracies (percent) and biases (L1) are over all images looked at; tasks
    whose answers are numbers have no accuracy.
    """
    from safetensors.numpy import save_file

    from ..viewing.reel import Reel, corrected, encoded, gathered, scenes_of

    scenes = scenes_of(params.sources.open(), params.tasks, params.probe, params.points, inputs.still["expert"])
    chosen = {scene.task.name: scene.chosen for scene in scenes}
    frames: dict[str, dict[int, Callable[[], Features]]] = {state: {} for state in ("merged", *params.calibrators)}
    for number, own in inputs.frames.items():
        if own.together is None:
            frames["merged"][number] = partial(encoded, own.merged, chosen)
        else:
            frames["merged"][number] = partial(gathered, own.together, chosen)
        for name in params.calibrators:
            folder = own.calibrator[name] if own.together is None else own.calibrator[name] / str(number)
            frames[name][number] = partial(corrected, folder, chosen)
    frames |= {state: {0: partial(encoded, folders, chosen)} for state, folders in inputs.still.items()}
    reel = Reel(scenes, frames, len(params.values))
    arrays, facts = reel.shoot(params.map, params.seed, tools.progress)
    save_file(arrays, output / "film.safetensors")
    document = {
        "format": 1,
        "place": params.place,
        "title": params.title,
        "values": list(params.values),
        "texts": [value_text(value) for value in params.values],
        "failed": {str(number): reason for number, reason in params.failed.items()},
        "chance": params.chance,
        "protocol": params.probe.protocol,
        "split_seed": params.probe.split_seed,
        "seed": params.run_seed,
        **facts,
        **reel.document(),
    }
    (output / "film.json").write_text(json.dumps(document))


def _first_seed(recipe: Recipe) -> Recipe:
    """Return a recipe with its first seed alone: a film shows one training."""
    return recipe.model_copy(update={"seeds": recipe.seeds[:1]})


def work(asked: FilmRequest, sizes: Sizes) -> Work:
    """Return what the runs of all frames take on the images that are looked at."""
    return Work(runs=len(asked.values), recipe=asked.sampled)


FILM = View("film", "Film", FilmRequest, plan, reduced=_first_seed, goes_on=True, work=work)
