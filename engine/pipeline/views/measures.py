"""Measures: every task by the measure that it is published with, and by the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import RecipeError
from ..steps import step
from ..viewing.base import View, ViewRequest
from ..viewing.on_bundle import OnBundleInputs, OnBundleParams
from ..viewing.opening import Opening, Settings, scored
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools


class MeasuresRequest(ViewRequest):
    """Request for the measures of a run's states."""

    REFUSAL = "Nothing was scored"


class MeasuresParams(OnBundleParams):
    """Parameters of the measures of a run."""

    own: dict[str, str]  # task → the measure that the zoo names for it
    grades: dict[str, tuple[float, ...]] | None = None  # task → the numbers that its classes stand for


def plan(run: RunSteps, asked: MeasuresRequest) -> str:
    """Plan the view on what the run left.

    Raises:
        RecipeError: the recipe's run has no features.
    """
    if not run.has_heads or not run.in_domain():
        raise RecipeError("The experts' tasks have no texts or images, or no heads, so this run scores nothing.")
    own = {task.name: task.measure for task in run.zoo.manifest.tasks}
    grades = {task.name: task.grades for task in run.zoo.manifest.tasks if task.grades}
    params = MeasuresParams(sources=run.sources, own=own, grades=grades or None)
    return run.make(measures, params, OnBundleInputs[str](run.bundle()))


@step("measures", label="Measuring answers", params=MeasuresParams, inputs=OnBundleInputs)
def measures(inputs: OnBundleInputs[Path], params: MeasuresParams, output: Path, tools: StepTools) -> None:
    """Measure every state's answers on its evaluation samples.

    Writes ``measures.json``: ``tasks`` (task → its own ``measure`` and ``states``: state → measure → percent; of graded
    ones correlations of the numbers, and ``why`` nothing else), ``mean`` (state → mean over in-domain tasks of each
    task's own measure) and ``of``, what that mean is a mean of. Means over seeds come with the report; these are the
    first seed's.
    """
    import numpy as np
    import pandas as pd

    from ...analysis.measures import CORRELATIONS, GRADED, MEASURES, mean_in_words, measured
    from ...report import read_report

    report = read_report(inputs.bundle)
    columns = ["task", "state", "split", "label", "prediction"]
    table = pd.read_parquet(inputs.bundle / "samples.parquet", columns=columns)
    table = table[table["split"] == "evaluate"]
    tasks: dict[str, dict] = {}
    for (task, state), rows in table.groupby(["task", "state"], sort=False, observed=True):
        labels, said = (rows[name].to_numpy() for name in ("label", "prediction"))
        own = params.own.get(str(task), "accuracy")
        entry = tasks.setdefault(str(task), {"measure": own, "samples": len(rows), "states": {}})
        names: tuple[str, ...] = tuple(MEASURES)
        if grades := (params.grades or {}).get(str(task)):
            scale, names = np.array(grades), CORRELATIONS
            labels, said, entry["why"] = scale[labels], scale[said], GRADED
        classes = len(report.tasks[str(task)].classes)
        entry["states"][str(state)] = {name: round(measured(name, labels, said, classes), 6) for name in names}
    if not tasks:
        raise RecipeError("The run scored nothing, so there is nothing to measure.")
    within = [task for task in report.tasks_of("in") if task in tasks]
    mean = {}
    for state in report.states():
        values = [
            tasks[task]["states"][state][tasks[task]["measure"]] for task in within if state in tasks[task]["states"]
        ]
        if len(values) == len(within) and values:
            mean[state] = round(sum(values) / len(values), 6)
    of = mean_in_words([tasks[task]["measure"] for task in within]) if within else ""
    (output / "measures.json").write_text(json.dumps({"tasks": tasks, "mean": mean, "of": of}))


def work(asked: MeasuresRequest, sizes: Sizes) -> Work:
    """Return what comparing every state's features takes."""
    return Work(seconds=sizes.scored(asked.recipe))


def _opened(opening: Opening) -> Settings:
    """Ask for it where tasks are published with unlike measures."""
    return scored(opening) if opening.kind.graded else []


TASK_MEASURES = View("measures", "Measures of every task", MeasuresRequest, plan, work=work, opens=_opened)
