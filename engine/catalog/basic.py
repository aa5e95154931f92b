"""Merge methods that average or add."""

from __future__ import annotations

from pydantic import Field

from .row import MergeRow, NoParams, Params, Preset


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
        summary="The mean of the experts' weights.",
        equation=r"\theta = \frac{1}{K}\sum_k \theta_k",
        source="Wortsman et al., Model soups, ICML 2022, arXiv:2203.05482",
        url="https://arxiv.org/abs/2203.05482",
        departure="All experts are averaged. Several published scripts drop the last of eight and still divide by "
        "eight; Task Arithmetic with λ = 0.125 and weight 0 for that expert repeats them.",
    ),
    MergeRow(
        name="task_arithmetic",
        title="Task Arithmetic",
        category="basic",
        params=TaskArithmeticParams,
        function=".merging.averaging:task_arithmetic",
        summary="Adds the scaled sum of the experts' task vectors to the base.",
        equation=r"\theta = \theta_0 + \lambda \sum_k \tau_k",
        source="Ilharco et al., Editing models with task arithmetic, ICLR 2023, arXiv:2212.04089",
        url="https://arxiv.org/abs/2212.04089",
        presets=(Preset("eight_tasks", "Eight tasks, ViT-B/32", {"scaling": 0.3}, "arXiv:2212.04089"),),
        weighted=True,
    ),
)
