"""Merge methods that solve or learn for the merged weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .row import MergeRow, Params, Preset


class AdaMergingParams(Params):
    """Parameters of AdaMerging."""

    granularity: Literal["task", "layer"] = Field(
        "task", title="Granularity", description="One coefficient for each task, or for each task and layer."
    )
    plus_plus: bool = Field(
        False, title="AdaMerging++", description="Trim and elect signs as TIES does before learning."
    )
    density: float = Field(0.2, gt=0, le=1, title="Density", description="Share of entries kept by AdaMerging++.")
    initial: float = Field(0.3, ge=0, le=1, title="Initial coefficient", description="Where every coefficient starts.")
    steps: int = Field(500, ge=0, le=10_000, title="Steps", description="Adam updates of the coefficients.")
    batch_size: int = Field(16, ge=1, le=1024, title="Batch size", description="Images of each task in one update.")
    learning_rate: float = Field(1e-3, gt=0, le=1, title="Learning rate", description="Adam's step size.")
    clamp: bool = Field(True, title="Clamp to [0, 1]", description="Keep coefficients in [0, 1] in the forward pass.")


ROWS = (
    MergeRow(
        name="adamerging",
        title="AdaMerging",
        category="optimisation",
        params=AdaMergingParams,
        function=".merging.adamerging:adamerging",
        summary="Learns the coefficients of the task vectors by making predictions on unlabelled images certain.",
        equation=r"\min_\lambda \sum_k \mathbb{E}_x H\big(f(x;\ \theta_0 + \textstyle\sum_k \lambda_k \tau_k)\big)",
        source="Yang et al., AdaMerging, ICLR 2024, arXiv:2310.02575",
        url="https://arxiv.org/abs/2310.02575",
        needs=frozenset({"unlabelled", "heads"}),
        presets=(
            Preset("task_wise", "Task-wise", {"granularity": "task"}, "arXiv:2310.02575"),
            Preset("layer_wise", "Layer-wise", {"granularity": "layer"}, "arXiv:2310.02575"),
            Preset("layer_wise_pp", "Layer-wise ++", {"granularity": "layer", "plus_plus": True}, "arXiv:2310.02575"),
        ),
        learns="task_coefficients",
        weighted=False,
        stochastic=True,
        departure="One batch a task and step, where the authors draw two.",
    ),
)
