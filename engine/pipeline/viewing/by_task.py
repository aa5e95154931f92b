"""Views that send each task's images through a run's models once more: a step a task, and one that gathers them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from ...errors import RecipeError, nearest
from ...preparation import Preparation
from ...recipe import LATER, Probe, Sparse
from ...zoo.task_data import graded_in_words
from ..run.linearised import refuse_inside
from ..sources import Sources
from ..steps import INLINED, A, Inputs, StepKind, StepParams, apart, step
from .base import ViewRequest, read_document
from .on_weights import MERGED

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools


class SampleRequest(ViewRequest, Sparse):
    """Base of requests that name how many images are looked at."""

    images: int = Field(
        200, ge=8, le=2000, title="Images a task", description="At most; drawn from the evaluation images."
    )


class ImagesRequest(SampleRequest):
    """Base of requests that are about each task, or about one."""

    task: Annotated[str, LATER] = Field(
        "", max_length=200, title="Task", description="The only one looked at; empty: every one."
    )


class TaskParams(StepParams):
    """Base of the parameters of a view's step on one task."""

    task: str
    data: str  # digest of the task's images
    images: int
    probe: Probe
    base: str  # digest
    calibrators: dict[str, str]  # name → the state that it corrects
    heads: str | None  # digest
    architecture: dict[str, Any]
    preprocess: Preparation
    expert: str = apart()
    expert_digest: str
    sources: Sources = apart()


@dataclass(frozen=True)
class ModelInputs(Inputs[A]):
    """The merge and the calibrators of a run's first seed."""

    merge: A
    calibrator: Mapping[str, A] = field(default_factory=dict)  # by name
    heads: A | None = None  # where they are built


class GatherParams(StepParams):
    """Parameters of the step that puts tasks together."""

    view: str
    tasks: tuple[str, ...]
    split_seed: int


@dataclass(frozen=True)
class GatherInputs(Inputs[A]):
    """A view's artefact of every task."""

    tasks: Mapping[str, A] = field(default_factory=dict, metadata=INLINED)


def plan_by_task(
    run: RunSteps,
    kind: StepKind,
    asked: ImagesRequest,
    label: str,
    calibrators: Mapping[str, str],
    own: Callable[[str], Mapping[str, Any]] = lambda task: {},
    beside: Callable[[str], Iterable[str]] = lambda task: (),
    right: bool = False,
) -> str:
    """Add a step for every in-domain task, and one that puts them together.

    Args:
        run: whose merge and calibrators are looked at.
        kind: of the step on one task; writes ``NAME.json``, and so does the last.
        asked: gives the number of images.
        label: of a task's step, with a place for the task.
        calibrators: those that are looked at: name → the state that it corrects.
        own: task → further parameters of its step.
        beside: task → experts that are run beside its own.
        right: whether answers are right or wrong in it, so that tasks which ask for numbers are left out.

    Returns:
        Key of the last step.

    Raises:
        RecipeError: no images of an expert's task that it can be of, or models that are evaluated linearised.
    """
    tasks, seed = judged(run) if right else [task.name for task in run.in_domain()], run.recipe.seeds[0]
    if not tasks:
        raise RecipeError("The experts' tasks have no images, so there is nothing to show. Add `data:` to zoo.yaml.")
    if asked.task:
        tasks = [one_of(asked.task, tasks, run)]
    models = dict.fromkeys([MERGED, *(name for task in tasks for name in (run.expert_of[task], *beside(task)))])
    refuse_inside([name for name in models if run.linearised(name)])
    made = run.seed(seed).calibrator if calibrators else {}
    inputs = ModelInputs[str](run.merge(seed), {name: made[name] for name in calibrators}, run.heads())
    keys = {}
    for task in tasks:
        params = kind.params(
            task=task,
            data=run.data_digests[task],
            images=asked.images,
            probe=run.recipe.probe,
            base=run.digests["base"],
            calibrators=dict(calibrators),
            heads=run.digests.get("heads"),
            architecture=run.config,
            preprocess=run.preprocess,
            expert=run.expert_of[task],
            expert_digest=run.digests[run.expert_of[task]],
            sources=run.sources,
            **own(task),
        )
        keys[task] = run.make(kind, params, inputs, label.format(task))
    together = GatherParams(view=kind.name, tasks=tuple(keys), split_seed=run.recipe.probe.split_seed)
    return run.make(gather, together, GatherInputs[str](keys))


def judged(run: RunSteps) -> list[str]:
    """Return the in-domain tasks whose answers are right or wrong, and can be scored.

    Raises:
        RecipeError: there are none.
    """
    need_heads(run)
    tasks = [task.name for task in run.in_domain() if not task.grades]
    if not tasks:
        raise RecipeError(
            "All of the experts' tasks ask for numbers, which are near or far and not right or wrong, so there is no "
            "accuracy to show. Choose a run with a task of classes."
        )
    return tasks


def one_of(task: str, tasks: Sequence[str], run: RunSteps) -> str:
    """Return a task that is among some of a run's.

    Raises:
        RecipeError: it is none of them.
    """
    for known in run.in_domain():
        if known.name == task and task not in tasks:
            raise RecipeError(f"{graded_in_words(known)} Choose another task for this view.")
    if task not in tasks:
        raise RecipeError(f"No expert's task with images is named '{task}'. {nearest(task, tasks)}")
    return task


@step("view_table", label="Putting the tasks together", params=GatherParams, inputs=GatherInputs, cost=0.1)
def gather(inputs: GatherInputs[Path], params: GatherParams, output: Path, tools: StepTools) -> None:
    """Put the tasks of a view together; writes ``NAME.json``."""
    tasks = {task: read_document(inputs.tasks[task], params.view) for task in params.tasks}
    (output / f"{params.view}.json").write_text(json.dumps({"split_seed": params.split_seed, "tasks": tasks}))


def another(run: RunSteps, task: str) -> str:
    """Return the expert of another task that follows a task's own in the recipe; empty where there is none."""
    names, table = [name for name, _ in run.experts], run.zoo.manifest.expert_table
    place = names.index(run.expert_of[task])
    return next((name for name in names[place + 1 :] + names[:place] if table[name].task != task), "")


def need_blocks(run: RunSteps, what: str) -> None:
    """Refuse a zoo whose encoder has no blocks that lead to its features one after another.

    Args:
        run: of the zoo.
        what: is to be done with them, such as ``follow``.

    Raises:
        RecipeError: it is such a zoo.
    """
    layout = run.zoo.modality.layout_of(run.config)
    if not layout.blocks:
        raise RecipeError(
            f"There is no way to {what} the blocks of {layout.family} encoders: answers are written, not read off the "
            "last block."
        )


def need_heads(run: RunSteps) -> None:
    """Refuse a run whose images cannot be classified.

    Raises:
        RecipeError: no images or heads of the experts' tasks.
    """
    if not run.has_heads or not run.in_domain():
        raise RecipeError("The experts' tasks have no images or no heads, so nothing can be scored with them.")
