"""Swaps: every task corrected by every other task's calibrator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import RecipeError
from ..steps import step
from ..viewing.base import View, ViewRequest
from ..viewing.on_bundle import OnBundleInputs, OnBundleParams, plan_on_bundle
from ..viewing.opening import scored
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools


class SwapsRequest(ViewRequest):
    """Request to swap a run's calibrators between tasks."""

    REFUSAL = "The features cannot be looked at"


def plan(run: RunSteps, asked: SwapsRequest) -> str:
    """Plan the view on what the run left.

    Raises:
        RecipeError: the recipe's run has no features.
    """
    return plan_on_bundle(run, wrong_task)


@step("wrong_task", label="Swapping calibrators between tasks", params=OnBundleParams, inputs=OnBundleInputs)
def wrong_task(inputs: OnBundleInputs[Path], params: OnBundleParams, output: Path, tools: StepTools) -> None:
    """Measure the accuracy of every task with every task's calibrator; writes ``wrong_task.json``."""
    from ...report import read_report
    from ..run.numbers import cross_accuracy

    folder, zoo = inputs.bundle, params.sources.open()
    report, found = read_report(folder), {}
    for number, state in enumerate(report.calibrators):
        tools.progress(number / len(report.calibrators), state)
        matrix = cross_accuracy(folder, report, zoo, state)
        if matrix is not None:
            found[state] = matrix
    if not found:
        raise RecipeError(
            "No calibrator of this run has a module for each task that corrects features alone. "
            "Add Surgery, or ProbSurgery with a module for each task."
        )
    (output / "wrong_task.json").write_text(json.dumps({"states": found}))


def work(asked: SwapsRequest, sizes: Sizes) -> Work:
    """Return what comparing every state's features takes."""
    return Work(seconds=sizes.scored(asked.recipe))


SWAPS = View("wrong_task", "Swapped calibrators", SwapsRequest, plan, work=work, opens=scored)
