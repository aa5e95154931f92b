"""Directions: toward which wrong class merged features go, and how much of their way the head can see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import RecipeError
from ..steps import step
from ..viewing.base import View, ViewRequest
from ..viewing.on_bundle import OnBundleInputs, OnBundleParams, plan_on_bundle
from ..viewing.opening import scored
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools

TABLE = "direction.parquet"


class DirectionRequest(ViewRequest):
    """Request for the directions of a run's shifts."""

    REFUSAL = "The features cannot be looked at"


def plan(run: RunSteps, asked: DirectionRequest) -> str:
    """Plan the view on what the run left.

    Raises:
        RecipeError: the recipe's run has no features.
    """
    return plan_on_bundle(run, direction)


@step("direction", label="Following the shift of features", params=OnBundleParams, inputs=OnBundleInputs)
def direction(inputs: OnBundleInputs[Path], params: OnBundleParams, output: Path, tools: StepTools) -> None:
    """Find where the merged features of every in-domain evaluation image went, as the task's head sees it.

    Writes ``direction.parquet``, a row an image: task, index, label, and the fields of
    :class:`engine.analysis.direction.Directions`; and ``direction.json`` with the head's ``rank`` and ``dim`` by task.
    """
    import pandas as pd
    from safetensors.numpy import load_file

    from ...analysis.direction import directions
    from ...report import read_report

    folder, zoo = inputs.bundle, params.sources.open()
    report, features = read_report(folder), load_file(folder / "features.safetensors")
    rows = pd.read_parquet(folder / "samples.parquet", columns=["task", "index", "label", "split", "state"])
    rows = rows[(rows["state"] == "merged") & (rows["split"] == "evaluate")]
    both = [
        task
        for task in report.tasks_of("in")
        if f"expert/{task}/evaluate" in features and f"merged/{task}/evaluate" in features
    ]
    tasks = [task for task in both if len(report.tasks[task].classes) > 1 and not report.tasks[task].graded]
    if not tasks:
        raise RecipeError("The experts' tasks have no evaluation images of two classes, so there is no wrong one.")
    heads, _ = zoo.heads(tasks)
    if any(head.affine is not None for head in heads.values()):
        raise RecipeError(
            "Directions are measured between the rows of zero-shot heads on unit features; this zoo's heads are "
            "classifiers with a bias, which take features as they are."
        )
    frames, spans = [], {}
    for number, task in enumerate(tasks):
        tools.progress(number / len(tasks), task)
        own, head = rows[rows["task"] == task], heads[task]
        found = directions(
            features[f"merged/{task}/evaluate"],
            features[f"expert/{task}/evaluate"],
            own["label"].to_numpy(),
            head.weight.numpy().astype(np.float64),
            head.scale,
            seed=report.split_seed,
        )
        values = {name: part for name, part in vars(found).items() if isinstance(part, np.ndarray)}
        frames.append(pd.DataFrame({"task": task, "index": own["index"], "label": own["label"], **values}))
        spans[task] = {"rank": found.rank, "dim": head.weight.shape[1], "images": len(own)}
    table = pd.concat(frames, ignore_index=True)
    kinds = {name: "float32" for name in table.columns if table[name].dtype == np.float64}
    kinds |= {"task": "category", "index": "int32", "label": "int16", "rival": "int16"}
    table.astype(kinds).to_parquet(output / TABLE, index=False, compression="zstd")
    (output / "direction.json").write_text(json.dumps({"tasks": spans, "split_seed": report.split_seed}))


def work(asked: DirectionRequest, sizes: Sizes) -> Work:
    """Return what comparing every state's features takes."""
    return Work(seconds=sizes.scored(asked.recipe))


DIRECTION = View("direction", "Directions of the shift", DirectionRequest, plan, work=work, opens=scored)
