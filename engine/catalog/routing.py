"""Merge methods whose weights depend on the task or on the input."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .row import BACKWARD, Cost, MergeRow, NoParams, Params, Preset
from .sparse import TallParams
from .survey_entry import SurveyEntry


class TwinParams(Params):
    """Parameters of Twin-Merging."""

    scaling: float = Field(
        0.3, ge=0, le=2, title="Scaling coefficient λ", description="How much of the summed task vectors is shared."
    )
    compression: Literal["svd", "magnitude", "random"] = Field(
        "svd",
        title="Compression",
        description="Of each expert's own part: leading singular directions, largest entries, or random ones (DARE).",
    )
    density: float = Field(
        0.2, ge=0, le=1, title="Density", description="Share of singular directions, or of entries, that is kept."
    )
    routing: Literal["mixture", "best"] = Field(
        "mixture", title="Routing", description="Mix all experts by the router's softmax, or take the best one alone."
    )
    examples: int = Field(256, ge=2, le=100_000, title="Images", description="Of each task, to train the router.")
    epochs: int = Field(50, ge=0, le=10_000, title="Epochs", description="Passes over the images' features.")
    batch_size: int = Field(1024, ge=2, le=65_536, title="Batch size", description="Images in one router update.")
    learning_rate: float = Field(5e-4, gt=0, le=1, title="Learning rate", description="AdamW's first step size.")


class WemoeParams(Params):
    """Parameters of WEMoE."""

    scaling: float = Field(
        0.3, ge=0, le=2, title="Scaling coefficient λ", description="Outside the perceptrons, and where gates start."
    )
    routing: Literal["image", "batch"] = Field(
        "image", title="Routing", description="Gates for every image, or for every batch of images of one task."
    )
    gate_layers: int = Field(2, ge=0, le=2, title="Gate layers", description="Linear layers of a gate; 0: constants.")
    steps: int = Field(1000, ge=0, le=100_000, title="Steps", description="Adam updates of the gates.")
    batch_size: int = Field(16, ge=1, le=1024, title="Batch size", description="Images of each task in one update.")
    learning_rate: float = Field(1e-4, gt=0, le=1, title="Learning rate", description="Adam's step size.")


ROWS = (
    MergeRow(
        name="emr",
        title="EMR-Merging",
        category="routing",
        params=NoParams,
        function=".merging.emr:emr",
        summary="One unified task vector, with a one-bit mask and one rescaler for each task.",
        equation=r"\theta_k = \theta_0 + \lambda_k\, M_k \circ \tau_{\mathrm{uni}},\quad "
        r"M_k = \mathbb{1}[\tau_k \circ \tau_{\mathrm{uni}} > 0]",
        source="Huang et al., EMR-Merging, NeurIPS 2024, arXiv:2405.17461",
        url="https://arxiv.org/abs/2405.17461",
        yields="per_task",
        cost=Cost(reads=2, sweeps=5),
        survey=SurveyEntry(
            place=30,
            method="EMR Merging",
            category="Routing",
            level="Task",
            tuning_free=True,
            size="> 1×",
            dynamic=True,
        ),
    ),
    MergeRow(
        name="tall",
        title="TALL-masks",
        category="routing",
        params=TallParams,
        function=".merging.consensus:tall",
        summary="The summed task vectors, with a one-bit mask of what serves each task.",
        equation=r"\theta_t = \theta_0 + m_t \circ \textstyle\sum_j \tau_j,\quad "
        r"m_t = \mathbb{1}[\,|\tau_t| > \lambda\,|\sum_j \tau_j - \tau_t|\,]",
        source="Wang et al., Localizing task information, ICML 2024, arXiv:2405.07813",
        url="https://arxiv.org/abs/2405.07813",
        yields="per_task",
        cost=Cost(reads=2),
        survey_with="consensus",
    ),
    MergeRow(
        name="twin",
        title="Twin-Merging",
        category="routing",
        params=TwinParams,
        function=".merging.twin:twin",
        summary="A merged model, and for every image a mixture of what is each expert's own, compressed.",
        equation=r"\theta(x) = \theta_\ast + \textstyle\sum_k w_k(x)\, \mathrm{SVD}_r(\theta_k - \theta_\ast),\quad "
        r"\theta_\ast = \theta_0 + \lambda \sum_k \tau_k",
        source="Lu et al., Twin-Merging, NeurIPS 2024, arXiv:2406.15479",
        url="https://arxiv.org/abs/2406.15479",
        needs=frozenset({"unlabelled"}),
        yields="per_sample",
        learns="router",
        stochastic=True,
        presets=(
            Preset("official", "Authors' code", {"scaling": 0.29}, "arXiv:2406.15479"),
            Preset("best", "Best expert only", {"routing": "best"}, "arXiv:2406.15479"),
            Preset("magnitude", "Largest entries", {"compression": "magnitude"}, "arXiv:2406.15479"),
            Preset("random", "Random entries", {"compression": "random"}, "arXiv:2406.15479"),
        ),
        cost=Cost(holds_models=True, images=lambda p: p.examples),
        quick={"examples": 6, "epochs": 2},
        survey=SurveyEntry(
            place=31,
            method="Twin Merging",
            category="Routing",
            level="Sample",
            tuning_free=False,
            data="labelled validation",
            size="> 1×",
            dynamic=True,
            remark=(
                "The router learns which task an image is of, for which the task of unlabelled images is label enough."
            ),
        ),
    ),
    MergeRow(
        name="wemoe",
        title="WEMoE",
        category="routing",
        params=WemoeParams,
        function=".merging.wemoe:wemoe",
        summary="Perceptrons become mixtures of the experts' ones, weighed by what enters them; the rest is merged.",
        equation=r"\theta^{\mathrm{MLP}}_\ell(x) = \theta^{\mathrm{MLP}}_{0,\ell} + "
        r"\textstyle\sum_k r_\ell(h_\ell(x))_k\, \tau^{\mathrm{MLP}}_{k,\ell}",
        source="Tang et al., WEMoE, ICML 2024, arXiv:2402.00433",
        url="https://arxiv.org/abs/2402.00433",
        needs=frozenset({"unlabelled", "heads"}),
        yields="per_sample",
        learns="router",
        stochastic=True,
        presets=(Preset("fusionbench", "FusionBench, CLIP", {"routing": "batch"}, "arXiv:2406.03280"),),
        cost=Cost(
            holds_models=True, images=lambda p: BACKWARD * p.batch_size * max(p.steps, 1), merges=lambda p: p.steps
        ),
        quick={"steps": 2, "batch_size": 4},
        survey=SurveyEntry(
            place=32,
            method="WEMoE",
            category="Routing",
            level="Sample",
            tuning_free=False,
            data="unlabelled test",
            size="≫ 1×",
            dynamic=True,
        ),
    ),
)
