"""Merge methods that average or add."""

from __future__ import annotations

from pydantic import Field

from .row import Cost, MergeRow, NoParams, Params, Preset
from .survey_entry import SurveyEntry


class TaskArithmeticParams(Params):
    """Parameters of task arithmetic."""

    scaling: float = Field(
        0.3, ge=-2, le=2, title="Scaling coefficient λ", description="How much of the summed task vectors to add."
    )


ROWS = (
    MergeRow(
        name="weight_average",
        title="Weight Averaging",
        category="basic",
        params=NoParams,
        function=".merging.averaging:weight_average",
        attribution=".merging.attribution:weight_average",
        summary="The mean of the experts' weights.",
        equation=r"\theta = \frac{1}{K}\sum_k \theta_k",
        source="Wortsman et al., Model soups, ICML 2022, arXiv:2203.05482",
        url="https://arxiv.org/abs/2203.05482",
        linear=lambda p, experts: 1 / experts,
        cost=Cost(sweeps=2),
        survey=SurveyEntry(place=3, method="Weighted Average", category="Basic", level="Global", tuning_free=True),
    ),
    MergeRow(
        name="task_arithmetic",
        title="Task Arithmetic",
        category="basic",
        params=TaskArithmeticParams,
        proportional=True,
        function=".merging.averaging:task_arithmetic",
        attribution=".merging.attribution:task_arithmetic",
        summary="Adds the scaled sum of the experts' task vectors to the base.",
        equation=r"\theta = \theta_0 + \lambda \sum_k \tau_k",
        source="Ilharco et al., Editing models with task arithmetic, ICLR 2023, arXiv:2212.04089",
        url="https://arxiv.org/abs/2212.04089",
        presets=(Preset("eight_tasks", "Published λ (eight tasks, ViT-B/32)", {"scaling": 0.3}, "arXiv:2212.04089"),),
        weighted=True,
        linear=lambda p, experts: p.scaling,
        cost=Cost(sweeps=2),
        survey=SurveyEntry(place=4, method="Task Arithmetic", category="Basic", level="Global", tuning_free=True),
    ),
)
