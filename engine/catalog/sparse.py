"""Merge methods that keep a sparse part of every task vector."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from .row import BACKWARD, PARITY, Cost, MergeRow, Params, Preset
from .survey_entry import SurveyEntry


class TiesParams(Params):
    """Parameters of TIES."""

    density: float = Field(
        0.2, gt=0, le=1, title="Density", description="Share of entries of each task vector that survives the trim."
    )
    merge: Literal["sum", "mean", "max"] = Field(
        "sum", title="Disjoint merge", description="How the entries that agree with the elected sign are combined."
    )
    scaling: float = Field(
        0.3, ge=-2, le=5, title="Scaling coefficient λ", description="How much of the merged task vector to add."
    )
    scope: Literal["model", "tensor"] = Field(
        "model",
        title="Trim scope",
        description="Rank entries over the whole model (the authors), or within each tensor (mergekit).",
    )
    frozen_parameters: int = Field(
        0,
        ge=-10_000_000_000,
        le=10_000_000_000,
        title="Frozen parameters counted",
        description="Untrained parameters outside the image encoder that count in the density; 25,599,489 reproduces "
        "numbers published with complete ViT-B/32 checkpoints. Below 0: untrained ones inside that do not count, such "
        "as the 393,216 of ViT-B/32's projection, which FusionBench's encoders lack.",
        json_schema_extra=PARITY,
    )


class BreadcrumbsParams(Params):
    """Parameters of Model Breadcrumbs."""

    beta: float = Field(0.15, gt=0, le=1, title="Kept share β", description="Share of entries kept in each row.")
    gamma: float = Field(
        0.006, ge=0, lt=1, title="Dropped outliers γ", description="Share of the largest entries that is dropped first."
    )
    scaling: float = Field(
        0.2, ge=-2, le=2, title="Scaling coefficient α", description="How much of the summed vectors to add."
    )
    scope: Literal["row", "tensor"] = Field(
        "row", title="Mask scope", description="Rank entries within each row (the authors) or each tensor (mergekit)."
    )


class DellaParams(Params):
    """Parameters of DELLA."""

    density: float = Field(0.5, gt=0, lt=1, title="Density ρ", description="Mean probability that an entry is kept.")
    epsilon: float = Field(
        0.15,
        ge=0,
        lt=0.5,
        title="Spread ε",
        description="The smallest entry is kept with ρ − ε, the largest with ρ + ε.",
    )
    rescale: bool = Field(True, title="Rescale", description="Divide a kept entry by its probability.")
    elect: bool = Field(True, title="Elect signs", description="Merge only entries that agree with the elected sign.")
    scaling: float = Field(
        1.1, ge=-2, le=5, title="Scaling coefficient λ", description="How much of the merged vector to add."
    )

    @model_validator(mode="after")
    def _probabilities(self) -> Self:
        if not 0 < self.density - self.epsilon <= self.density + self.epsilon < 1:
            raise ValueError("density − epsilon and density + epsilon must lie strictly between 0 and 1")
        return self


class TallParams(Params):
    """Parameters of TALL-masks."""

    mask_strictness: float = Field(
        0.4,
        ge=0,
        le=5,
        title="Mask strictness λ",
        description="How strongly an entry must outweigh the other tasks to belong to a task.",
    )


class ConsensusParams(TallParams):
    """Parameters of Consensus Merging."""

    agreeing: int = Field(
        2, ge=0, le=100, title="Agreeing tasks k", description="Entries that serve fewer tasks are given up."
    )
    scaling: float = Field(
        0.3, ge=-2, le=5, title="Scaling coefficient α", description="How much of the masked sum to add."
    )


class PcbParams(Params):
    """Parameters of PCB-Merging."""

    density: float = Field(0.05, gt=0, le=1, title="Density r", description="Share of scores that stay above zero.")
    scaling: float = Field(
        1.2, ge=-2, le=5, title="Scaling coefficient λ", description="How much of the merged vector to add."
    )
    clip: float = Field(
        1e-4, ge=0, le=0.1, title="Clipped tails", description="Share of magnitudes clipped at each end of a task."
    )
    balance: Literal["task_vectors", "normalised"] = Field(
        "task_vectors", title="Balance among tasks", description="Compare with summed vectors or normalised ones."
    )


class LocalizeParams(Params):
    """Parameters of Localize-and-Stitch."""

    density: float = Field(0.1, gt=0, le=1, title="Density s", description="Share of each expert's entries kept.")


class LearnedLocalizeParams(Params):
    """Parameters of Localize-and-Stitch with learned masks."""

    density: float = Field(
        0.01, gt=0, le=1, title="Initial density s", description="Share of each expert's entries selected at first."
    )
    start: float = Field(
        5.0, gt=0, le=50, title="Initial score", description="Scores of masks start at this, or at its negative."
    )
    epochs: int = Field(10, ge=0, le=1000, title="Epochs", description="Updates of the scores of an expert.")
    examples: int = Field(
        64, ge=1, le=100_000, title="Images", description="Labelled validation images of each task in one update."
    )
    batch_size: int = Field(16, ge=1, le=1024, title="Batch size", description="Images that are encoded at once.")
    learning_rate: float = Field(
        1e7, gt=0, le=1e12, title="Learning rate", description="Step size of the scores; gradients are tiny."
    )
    strength: float = Field(1.0, ge=0, le=1e6, title="Penalty", description="How strongly masks are kept sparse.")
    penalty: Literal["l1", "signed"] = Field(
        "l1",
        title="Form of the penalty",
        description="l1 lowers every score (the paper); signed moves scores away from zero (the authors' code).",
    )


class ModelTailorParams(Params):
    """Parameters of Model Tailor."""

    sparsity: float = Field(
        0.9, ge=0, lt=1, title="Sparsity", description="Share of a linear layer's entries given back to the base."
    )
    magnitude_share: float = Field(
        0.8, ge=0, le=1, title="Share of magnitude", description="How much magnitude counts beside sensitivity."
    )
    damping: float = Field(
        0.01, gt=0, le=10, title="Damping", description="Added to inner products, as a share of their mean diagonal."
    )
    block: int = Field(128, ge=1, le=10_000, title="Block", description="Columns whose entries are ranked together.")
    examples: int = Field(256, ge=1, le=100_000, title="Images", description="Unlabelled images of each task.")
    scaling: float = Field(
        1.0, ge=-2, le=5, title="Scaling coefficient λ", description="How much of the summed patches to add."
    )


ROWS = (
    MergeRow(
        name="ties",
        title="TIES",
        category="sparse",
        params=TiesParams,
        proportional=True,
        function=".merging.ties:ties",
        attribution=".merging.attribution:ties",
        summary="Trims small entries, elects a sign for every entry, and merges only what agrees with it.",
        equation=r"\theta = \theta_0 + \lambda \sum_k \hat\tau_k \circ \mathbb{1}[\operatorname{sgn}\hat\tau_k = "
        r"\operatorname{sgn}\textstyle\sum_j \hat\tau_j]",
        source="Yadav et al., TIES-Merging, NeurIPS 2023, arXiv:2306.01708",
        url="https://arxiv.org/abs/2306.01708",
        presets=(
            Preset(
                "vision", "Vision numbers: sum", {"density": 0.2, "merge": "sum", "scaling": 0.3}, "arXiv:2310.02575"
            ),
            Preset("paper", "Paper: mean", {"density": 0.2, "merge": "mean", "scaling": 1.0}, "arXiv:2306.01708"),
            Preset(
                "mergekit",
                "mergekit: each tensor",
                {"density": 0.2, "merge": "mean", "scaling": 1.0, "scope": "tensor"},
                "arXiv:2403.13257",
            ),
        ),
        cost=Cost(reads=2, sweeps=10),
        survey=SurveyEntry(
            place=11, method="Ties-Merging", category="Sparse subspace", level="Global", tuning_free=True
        ),
    ),
    MergeRow(
        name="breadcrumbs",
        title="Model Breadcrumbs",
        category="sparse",
        params=BreadcrumbsParams,
        proportional=True,
        function=".merging.row_pruning:breadcrumbs",
        attribution=".merging.attribution:breadcrumbs",
        summary="Drops the largest and the smallest entries of every task vector and adds what is left.",
        equation=r"\theta = \theta_0 + \alpha \sum_k m_k^{\beta,\gamma} \circ \tau_k",
        source="Davari & Belilovsky, Model Breadcrumbs, ECCV 2024, arXiv:2312.06795",
        url="https://arxiv.org/abs/2312.06795",
        presets=(
            Preset(
                "mergekit", "mergekit: each tensor", {"beta": 0.9, "gamma": 0.01, "scope": "tensor"}, "arXiv:2403.13257"
            ),
        ),
        cost=Cost(reads=2, sweeps=12),
        survey=SurveyEntry(
            place=13, method="Model Breadcrumbs", category="Sparse subspace", level="Global", tuning_free=True
        ),
    ),
    MergeRow(
        name="della",
        title="DELLA",
        category="sparse",
        params=DellaParams,
        proportional=True,
        function=".merging.row_pruning:della",
        attribution=".merging.attribution:della",
        summary="Drops small entries more often than large ones at random, then elects signs and merges.",
        equation=r"\tilde\tau_{k,i} = \frac{m_{k,i}}{p_i}\,\tau_{k,i},\quad "
        r"p_i = \rho - \epsilon + 2\epsilon\,\tfrac{r_i}{n-1}",
        source="Deep et al., DELLA-Merging, 2024, arXiv:2406.11617",
        url="https://arxiv.org/abs/2406.11617",
        stochastic=True,
        cost=Cost(reads=2, sweeps=14),
        survey=SurveyEntry(
            place=17, method="DELLA-Merging", category="Sparse subspace", level="Global", tuning_free=False
        ),
    ),
    MergeRow(
        name="consensus",
        title="Consensus Merging",
        category="sparse",
        params=ConsensusParams,
        proportional=True,
        function=".merging.consensus:consensus",
        attribution=".merging.attribution:consensus",
        summary="Keeps the entries of the summed task vectors that serve at least a few tasks.",
        equation=r"\theta = \theta_0 + \alpha\, \mathbb{1}[\textstyle\sum_t m_t \ge k] \circ \sum_j \tau_j,\quad "
        r"m_t = \mathbb{1}[\,|\tau_t| > \lambda\,|\sum_j \tau_j - \tau_t|\,]",
        source="Wang et al., Localizing task information, ICML 2024, arXiv:2405.07813",
        url="https://arxiv.org/abs/2405.07813",
        cost=Cost(reads=2),
        survey=SurveyEntry(
            place=16,
            method="Consensus Merging",
            category="Sparse subspace",
            level="Task",
            tuning_free=True,
            remark="TALL-masks is the variant with a mask for each task.",
        ),
    ),
    MergeRow(
        name="pcb",
        title="PCB-Merging",
        category="sparse",
        params=PcbParams,
        proportional=True,
        function=".merging.pcb:pcb",
        attribution=".merging.attribution:pcb",
        summary="Weights every entry by its standing within its task and among tasks, and drops low scores.",
        equation=r"\theta = \theta_0 + \lambda\, \frac{\sum_k \hat\beta_k \circ \tau_k}{\sum_k \hat\beta_k}",
        source="Du et al., Parameter Competition Balancing, NeurIPS 2024, arXiv:2410.02396",
        url="https://arxiv.org/abs/2410.02396",
        presets=(
            Preset("lwptv", "As in LwPTV", {"density": 0.05, "scaling": 1.2}, "arXiv:2506.09093"),
            Preset(
                "vision_script", "Authors' vision script", {"clip": 0.01, "balance": "normalised"}, "arXiv:2410.02396"
            ),
        ),
        cost=Cost(reads=2, sweeps=14),
        survey=SurveyEntry(place=18, method="PCB-Merging", category="Sparse subspace", level="Task", tuning_free=True),
    ),
    MergeRow(
        name="localize_and_stitch",
        title="Localize-and-Stitch",
        category="sparse",
        params=LocalizeParams,
        function=".merging.localize:localize_and_stitch",
        attribution=".merging.attribution:localize_and_stitch",
        summary="Keeps each expert's largest entries and averages where they overlap (dataless variant).",
        equation=r"\theta = \theta_0 + \frac{\sum_k m_k \circ \tau_k}{\sum_k m_k},\quad "
        r"m_k = \mathbb{1}[\,|\tau_k| > |\tau_k|^{(n)}]",
        source="He et al., Localize-and-Stitch, TMLR 2025, arXiv:2408.13656",
        url="https://arxiv.org/abs/2408.13656",
        survey_with="localize_and_stitch_learned",
    ),
    MergeRow(
        name="localize_and_stitch_learned",
        title="Localize-and-Stitch, learned",
        category="sparse",
        params=LearnedLocalizeParams,
        function=".merging.localize_learned:localize_learned",
        summary="Learns on labelled images which few entries of each expert carry its task, and stitches those.",
        equation=r"\min_{S_k} \ell\big(\theta_0 + \sigma(S_k)\circ\tau_k\big) + \lambda\|\sigma(S_k)\|_1,\quad "
        r"m_k = \mathbb{1}[S_k > 0]",
        source="He et al., Localize-and-Stitch, TMLR 2025, arXiv:2408.13656",
        url="https://arxiv.org/abs/2408.13656",
        needs=frozenset({"validation", "heads"}),
        presets=(
            Preset(
                "authors",
                "Authors' vision script",
                {"density": 1e-5, "penalty": "signed"},
                "uiuctml/Localize-and-Stitch",
            ),
        ),
        learns="mask",
        stochastic=True,
        cost=Cost(images=lambda p: BACKWARD * p.examples * p.epochs, merges=lambda p: p.epochs),
        quick={"density": 0.2, "epochs": 2, "examples": 8, "batch_size": 4},
        survey=SurveyEntry(
            place=15,
            method="Localize-and-Stitch",
            category="Sparse subspace",
            level="Global",
            tuning_free=True,
            data="labelled validation",
            remark="With masks learned on labelled images, and the authors' variant without data.",
        ),
    ),
    MergeRow(
        name="model_tailor",
        title="Model Tailor",
        category="sparse",
        params=ModelTailorParams,
        function=".merging.model_tailor:model_tailor",
        summary="Keeps the entries of each expert that moved most and matter most, and adjusts the others for it.",
        equation=r"\theta = \theta_0 + \lambda\sum_k \big(m_k\circ\tau_k + c_k\big),\quad "
        r"s_k = 0.8\, z(|\tau_k|) + 0.2\, z\big(\theta_k^2 / [H_k^{-1}]^2\big)",
        source="Zhu et al., Model Tailor, ICML 2024, arXiv:2402.12048",
        url="https://arxiv.org/abs/2402.12048",
        needs=frozenset({"unlabelled"}),
        tokens=True,
        stochastic=True,
        cost=Cost(images=lambda p: BACKWARD * p.examples),
        quick={"examples": 40},
        survey=SurveyEntry(
            place=14,
            method="Model Tailor",
            category="Sparse subspace",
            level="Global",
            tuning_free=False,
            data="labelled training",
            remark="Only inputs of layers count, so unlabelled images are enough.",
        ),
    ),
)
