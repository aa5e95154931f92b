"""The parameters of steps that merge anew, and the part of a recipe that a merge depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ...catalog import resolve
from ...recipe import MethodCall, Recipe
from ..steps import apart
from .by_task import TaskParams

if TYPE_CHECKING:
    from ..run.plan import RunSteps


class TrialParams(TaskParams):
    """Parameters of a step that merges anew."""

    experts: tuple[tuple[str, float], ...]  # names with their weights
    digests: dict[str, str] = apart()  # by the expert's name and ``base``
    experts_digests: tuple[str, ...]
    transforms: tuple[MethodCall, ...]
    merge: MethodCall
    seed: int
    counted: Literal["present"] | None = None  # see :class:`..run.merging.MergeParams`
    tasks: tuple[str, ...] | None = None  # the same
    looked_at: dict[str, str | None] | None = None  # task → digest of the images, where the merge looks at them

    @staticmethod
    def own(run: RunSteps) -> dict[str, Any]:
        """Return what these parameters have beside those of every step on a task."""
        names = [name for name, _ in run.experts]
        return {
            "experts": run.experts,
            "digests": run.digests_of(*names),
            "experts_digests": tuple(run.digests[name] for name in names),
            "transforms": run.recipe.transforms,
            "merge": run.recipe.merge,
            "seed": run.recipe.seeds[0],
            "counted": run.counted,
            "tasks": run.tasks_of_experts,
            "looked_at": run.looked_at,
        }


def merge_alone(recipe: Recipe) -> Recipe:
    """Return a recipe without calibrators and with its first seed, written out: what a merge depends on."""
    return resolve(recipe.model_copy(update={"calibrators": (), "seeds": recipe.seeds[:1]}))
