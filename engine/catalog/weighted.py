"""Merge methods that weight or turn whole tensors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..recipe import LATER
from .row import MergeRow, NoParams, OnlyWith, Params, Preset
from .survey_entry import SurveyEntry


class SphericalParams(Params):
    """Parameters shared by methods on spheres."""

    on: Literal["task_vectors", "weights"] = Field(
        "task_vectors",
        title="Turn",
        description="Merge the directions of task vectors, or of whole weights (mergekit).",
    )


class SlerpParams(SphericalParams):
    """Parameters of SLERP."""

    t: float = Field(0.5, ge=0, le=1, title="Position t", description="0 is the first expert, 1 the second.")
    scope: Literal["tensor", "model"] = Field(
        "tensor", title="Scope", description="One angle for each tensor, or one for the whole model."
    )


class MultiSlerpParams(SphericalParams):
    """Parameters of MultiSLERP."""


class KarcherParams(SphericalParams):
    """Parameters of the Karcher mean."""

    max_iterations: int = Field(10, ge=0, le=1000, title="Iterations", description="At most this many steps a tensor.")
    tolerance: float = Field(
        1e-5, gt=0, le=1, title="Tolerance", description="Stop when a step is shorter than this (radians)."
    )


class ModelStockParams(Params):
    """Parameters of Model Stock."""

    average: Literal["angles", "cosines"] = Field(
        "angles", title="Average", description="Of angles (FusionBench) or of cosines (mergekit) between experts."
    )
    scope: Literal["tensor", "row"] = Field(
        "tensor", title="Scope", description="One ratio for each tensor, or one for each row of a tensor."
    )
    clamp: bool = Field(True, title="Clamp ratio", description="Keep the ratio between base and mean in [0, 1].")
    by_task: Annotated[bool, LATER] = Field(
        False,
        title="Within tasks",
        description="Combine the experts of each task by Model Stock, and add the tasks as in Task Arithmetic.",
    )
    scaling: Annotated[float, LATER, OnlyWith(by_task=(True,))] = Field(
        0.3, ge=0, le=2, title="Scaling λ", description="Of the sum over tasks; only within tasks."
    )


class SceParams(Params):
    """Parameters of SCE."""

    select: float = Field(
        0.1,
        gt=0,
        le=1,
        title="Selected share",
        description="Share of each tensor's entries that vary most over experts.",
    )
    unselected: Literal["merge", "drop"] = Field(
        "merge",
        title="Other entries",
        description="Merged too, so that the selection only decides weights (the authors), or dropped (mergekit).",
    )
    scaling: float = Field(
        1.0, ge=-2, le=5, title="Scaling coefficient λ", description="How much of the merged vector to add."
    )


MERGEKIT = "Goddard et al., MergeKit, EMNLP 2024 industry track, arXiv:2403.13257"
MERGEKIT_URL = "https://arxiv.org/abs/2403.13257"

ROWS = (
    MergeRow(
        name="slerp",
        title="SLERP",
        category="weighted",
        params=SlerpParams,
        function=".merging.spherical:slerp",
        summary="Goes from one expert to the other along a great circle.",
        equation=r"\tau = \frac{\sin((1-t)\rho)}{\sin\rho}\,\tau_1 + \frac{\sin(t\rho)}{\sin\rho}\,\tau_2",
        source="Shoemake, SIGGRAPH 1985; " + MERGEKIT,
        url=MERGEKIT_URL,
        presets=(Preset("mergekit", "mergekit", {"on": "weights"}, "arXiv:2403.13257"),),
        min_experts=2,
        max_experts=2,
        survey=SurveyEntry(
            place=5,
            method="SLERP",
            category="Weighted",
            level="Task",
            tuning_free=True,
            remark="SLERP takes two experts; MultiSLERP and the Karcher mean take more.",
        ),
    ),
    MergeRow(
        name="multislerp",
        title="MultiSLERP",
        category="weighted",
        params=MultiSlerpParams,
        function=".merging.spherical:multislerp",
        summary="The mean direction of all experts, at their mean length.",
        equation=r"\tau = \overline{\|\tau_k\|}\;\frac{\sum_k \tau_k/\|\tau_k\|}{\|\sum_k \tau_k/\|\tau_k\|\|}",
        source=MERGEKIT,
        url=MERGEKIT_URL,
        presets=(Preset("weights", "On weights", {"on": "weights"}, "arXiv:2403.13257"),),
        survey_with="slerp",
    ),
    MergeRow(
        name="karcher",
        title="Karcher mean",
        category="weighted",
        params=KarcherParams,
        function=".merging.spherical:karcher",
        summary="The direction with the least squared angles to all experts, at their mean length.",
        equation=r"\hat u = \arg\min_{\|u\|=1} \sum_k \arccos^2\langle u, \tau_k/\|\tau_k\|\rangle",
        source="Karcher, 1977; " + MERGEKIT,
        url=MERGEKIT_URL,
        presets=(Preset("mergekit", "mergekit", {"on": "weights"}, "arXiv:2403.13257"),),
        survey_with="slerp",
    ),
    MergeRow(
        name="metagpt",
        title="MetaGPT",
        category="weighted",
        params=NoParams,
        function=".merging.weighting:metagpt",
        summary="Weights every expert by its share of the squared norms of all task vectors.",
        equation=r"\lambda_k = \frac{\|\tau_k\|^2}{\sum_j \|\tau_j\|^2}",
        source="Zhou et al., MetaGPT, EMNLP 2024, arXiv:2406.11385",
        url="https://arxiv.org/abs/2406.11385",
        survey=SurveyEntry(place=8, method="MetaGPT", category="Weighted", level="Task", tuning_free=True),
    ),
    MergeRow(
        name="model_stock",
        title="Model Stock",
        category="weighted",
        params=ModelStockParams,
        function=".merging.weighting:model_stock",
        summary="Moves from the base towards the mean expert as far as the experts agree; meant for several "
        "fine-tunings of one task.",
        equation=r"\theta = \theta_0 + t\,\bar\tau,\quad t = \frac{K\cos\varphi}{1 + (K-1)\cos\varphi}",
        source="Jang, Yun & Han, Model Stock, ECCV 2024, arXiv:2403.19522",
        url="https://arxiv.org/abs/2403.19522",
        presets=(
            Preset("mergekit", "mergekit", {"average": "cosines", "scope": "row"}, "arXiv:2403.13257"),
            Preset("by_task", "Two seeds a task, then added", {"by_task": True}, "LwPTV, Tables 3, 10 and 11"),
        ),
        min_experts=2,
    ),
    MergeRow(
        name="sce",
        title="SCE",
        category="weighted",
        params=SceParams,
        proportional=True,
        function=".merging.sce:sce",
        attribution=".merging.attribution:sce",
        summary="Weights every tensor of the experts by the energy of its most varying entries and adds what agrees "
        "with the sign of the sum.",
        equation=r"\tau = \frac{\sum_k w_k\, m_k \circ \tau_k}{\sum_k w_k\, m_k},\quad "
        r"w_k \propto \overline{(s \circ \tau_k)^2},\quad m_k = \mathbb{1}[\operatorname{sgn}\tau_k = "
        r"\operatorname{sgn}\textstyle\sum_j \tau_j]",
        source="Wan et al., FuseChat, EMNLP 2025, arXiv:2408.07990",
        url="https://arxiv.org/abs/2408.07990",
        presets=(
            Preset("paper", "Authors' program", {"select": 0.1}, "fanqiwan/FuseAI"),
            Preset("mergekit", "mergekit", {"select": 0.1, "unselected": "drop"}, "arXiv:2403.13257"),
        ),
    ),
)
