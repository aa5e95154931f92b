"""Predictions: the likeliest classes of every image in every state."""

from __future__ import annotations

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
    import pandas as pd

    from ..run.plan import RunSteps
    from ..tools import StepTools

TOP = 5


class PredictionsRequest(ViewRequest):
    """Request for the predictions of a run's states."""

    REFUSAL = "The features cannot be looked at"


def plan(run: RunSteps, asked: PredictionsRequest) -> str:
    """Plan the view on what the run left.

    Raises:
        RecipeError: the recipe's run has no features.
    """
    return plan_on_bundle(run, predictions)


@step("predictions", label="Asking every model about every image", params=OnBundleParams, inputs=OnBundleInputs)
def predictions(inputs: OnBundleInputs[Path], params: OnBundleParams, output: Path, tools: StepTools) -> None:
    """Find the five likeliest classes of every in-domain evaluation image in every state.

    Writes ``predictions.parquet``: task, index, state, rank (from 1), label, probability, and ``shift``, the Euclidean
    distance of the image's feature to the expert's.
    """
    import pandas as pd
    from safetensors.numpy import load_file

    from ...analysis.accuracy import scores
    from ...analysis.bias import sample_shift
    from ...report import read_report

    folder, zoo = inputs.bundle, params.sources.open()
    report = read_report(folder)
    features = load_file(folder / "features.safetensors")
    rows = pd.read_parquet(folder / "samples.parquet", columns=["task", "index", "split", "state"])
    rows = rows[(rows["state"] == "merged") & (rows["split"] == "evaluate")]
    tasks = [task for task in report.tasks_of("in") if f"expert/{task}/evaluate" in features]
    heads, _ = zoo.heads(tasks)
    frames = []
    for number, task in enumerate(tasks):
        tools.progress(number / len(tasks), task)
        index, expert = rows.loc[rows["task"] == task, "index"].to_numpy(), features[f"expert/{task}/evaluate"]
        for state in report.states():
            found = features.get(f"{state}/{task}/evaluate")
            if found is not None:
                said = scores(found, heads[task])
                frames.append(_likeliest(said, index, sample_shift(found, expert)).assign(task=task, state=state))
    if not frames:
        raise RecipeError("The experts' tasks have no evaluation images, so there is none to look at.")
    pd.concat(frames, ignore_index=True).to_parquet(output / "predictions.parquet", index=False, compression="zstd")


def _likeliest(said: np.ndarray, index: np.ndarray, shift: np.ndarray) -> pd.DataFrame:
    """Return a row an image and rank."""
    import pandas as pd

    from ...analysis.accuracy import probabilities

    chances = probabilities(said)
    order = np.argsort(-said, axis=1, kind="stable")[:, :TOP]
    ranks = order.shape[1]
    return pd.DataFrame(
        {
            "index": np.repeat(index, ranks),
            "rank": np.tile(np.arange(1, ranks + 1), len(index)),
            "label": order.ravel(),
            "probability": np.take_along_axis(chances, order, axis=1).ravel(),
            "shift": np.repeat(shift, ranks),
        }
    )


def work(asked: PredictionsRequest, sizes: Sizes) -> Work:
    """Return what comparing every state's features takes."""
    return Work(seconds=sizes.scored(asked.recipe))


PREDICTIONS = View("predictions", "Predictions of every image", PredictionsRequest, plan, work=work, opens=scored)
