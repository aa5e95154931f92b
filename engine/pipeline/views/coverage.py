"""Coverage: predicted spreads against the residuals that they predict."""

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


class CoverageRequest(ViewRequest):
    """Request for the coverage of a run's predicted spreads."""

    REFUSAL = "The features cannot be looked at"


def plan(run: RunSteps, asked: CoverageRequest) -> str:
    """Plan the view on what the run left.

    Raises:
        RecipeError: the recipe's run has no features.
    """
    return plan_on_bundle(run, coverage)


@step("coverage", label="Comparing predicted spreads with residuals", params=OnBundleParams, inputs=OnBundleInputs)
def coverage(inputs: OnBundleInputs[Path], params: OnBundleParams, output: Path, tools: StepTools) -> None:
    """Compare the spread that calibrators predict with the residual itself.

    The residual of an image and dimension is z − μ − z_expert; σ is what was predicted for it. On evaluation images.
    Writes ``coverage.json``: state → task → what :func:`engine.analysis.spread.spread_of` finds.
    """
    import torch
    from safetensors.numpy import load_file

    from ...analysis.spread import spread_of
    from ...calibration.base import load_calibrator
    from ...report import read_report

    folder = inputs.bundle
    report = read_report(folder)
    features, found = load_file(folder / "features.safetensors"), {}
    for number, (state, part) in enumerate(report.calibrators.items()):
        tools.progress(number / len(report.calibrators), state)
        module = load_calibrator(folder / "calibrators" / f"{state}.safetensors")
        if not hasattr(module, "sigma"):
            continue
        for task in report.tasks_of("in"):
            names = f"{part.on}/{task}/evaluate", f"expert/{task}/evaluate"
            if all(name in features for name in names):
                given, expert = (torch.from_numpy(features[name]) for name in names)
                with torch.no_grad():
                    residual = (module.correct(given, task) - expert).numpy()
                    spread = module.sigma(given, task).numpy()
                found.setdefault(state, {})[task] = spread_of(spread, residual)
    if not found:
        raise RecipeError("No calibrator of this run predicts a spread. Add ProbSurgery to the recipe.")
    (output / "coverage.json").write_text(json.dumps(found))


def work(asked: CoverageRequest, sizes: Sizes) -> Work:
    """Return what comparing every state's features takes."""
    return Work(seconds=sizes.scored(asked.recipe))


COVERAGE = View("coverage", "Coverage of predicted spreads", CoverageRequest, plan, work=work, opens=scored)
