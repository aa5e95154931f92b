"""Base of views on what one run left: one step that reads its bundle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import RecipeError
from ..sources import Sources
from ..steps import A, Inputs, StepKind, StepParams, apart

if TYPE_CHECKING:
    from ..run.plan import RunSteps


class OnBundleParams(StepParams):
    """Parameters of a view that reads what a run left; all that it depends on is there."""

    sources: Sources = apart()


@dataclass(frozen=True)
class OnBundleInputs(Inputs[A]):
    """The folder that a run left."""

    bundle: A


def plan_on_bundle(run: RunSteps, kind: StepKind) -> str:
    """Add the run and a step that reads what it left; returns the step's key.

    Raises:
        RecipeError: the recipe's run has no features.
    """
    if not run.has_heads or not run.in_domain():
        raise RecipeError("The experts' tasks have no images or no heads, so this run leaves no features to look at.")
    return run.make(kind, OnBundleParams(sources=run.sources), OnBundleInputs[str](run.bundle()))
