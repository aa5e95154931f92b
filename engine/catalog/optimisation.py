"""Merge methods that solve or learn for the merged weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..recipe import LATER
from .row import BACKWARD, Cost, MergeRow, OnlyWith, Params, Preset
from .survey_entry import SurveyEntry


class AdaMergingParams(Params):
    """Parameters of AdaMerging."""

    granularity: Literal["task", "layer"] = Field(
        "task", title="Granularity", description="One coefficient for each task, or for each task and layer."
    )
    plus_plus: bool = Field(
        False, title="AdaMerging++", description="Trim and elect signs as TIES does before learning."
    )
    density: Annotated[float, OnlyWith(plus_plus=(True,))] = Field(
        0.2, gt=0, le=1, title="Density", description="Share of entries kept by AdaMerging++."
    )
    initial: float = Field(0.3, ge=0, le=1, title="Initial coefficient", description="Where every coefficient starts.")
    steps: int = Field(500, ge=0, le=10_000, title="Steps", description="Adam updates of the coefficients.")
    batch_size: int = Field(16, ge=1, le=1024, title="Batch size", description="Images of each task in one update.")
    learning_rate: float = Field(1e-3, gt=0, le=1, title="Learning rate", description="Adam's step size.")
    clamp: bool = Field(True, title="Clamp to [0, 1]", description="Keep coefficients in [0, 1] in the forward pass.")
    batches_per_step: Annotated[int, LATER] = Field(
        1,
        ge=1,
        le=100,
        title="Batches a step",
        description="Batches of each task whose losses are added in one update; the authors' code draws two.",
    )


class ClosedFormParams(Params):
    """Parameters of the closed form."""

    omega: float = Field(
        0.1, gt=0, le=1e6, title="Ridge ω", description="Large values give the mean of task vectors weighted by 1/‖τ‖²."
    )
    relative: bool = Field(
        True,
        title="Relative ridge",
        description="Multiply ω by the mean squared norm of a column of the task matrices.",
    )


class WudiParams(Params):
    """Parameters of WUDI-Merging."""

    steps: int = Field(
        300, ge=0, le=10_000, title="Steps", description="Adam steps; stopping early is the regulariser."
    )
    learning_rate: float = Field(
        1e-5, gt=0, le=1, title="Learning rate", description="Adam's step size, in units of the weights."
    )
    matrices: Literal["blocks", "all"] = Field(
        "blocks", title="Matrices", description="Those in transformer blocks (the authors), or all (FusionBench)."
    )


class DogeParams(Params):
    """Parameters of DOGE."""

    scaling: float = Field(
        0.07, ge=0, le=10, title="Scale η", description="Length of each expert's scaled task matrix, λ_k = η/‖τ_k‖."
    )
    density: float = Field(0.3, gt=0, le=1, title="Density", description="Share of each expert's entries that is kept.")
    basis_divisor: int = Field(
        6, ge=1, le=1000, title="Shared basis", description="The shared basis has this fraction of a matrix's rank."
    )
    steps: int = Field(400, ge=0, le=10_000, title="Steps", description="Adam steps on the correction of a layer.")
    learning_rate: float = Field(1e-4, gt=0, le=1, title="Learning rate", description="Adam's step size.")


class DogeLearnedParams(Params):
    """Parameters of DOGE with learned coefficients."""

    scaling: float = Field(
        0.07, ge=0, le=10, title="Scale η", description="Where coefficients start: λ_k = η/‖τ_k‖ in every layer."
    )
    density: float = Field(0.3, gt=0, le=1, title="Density", description="Share of each expert's entries that is kept.")
    correction_steps: int = Field(
        400, ge=0, le=10_000, title="Correction steps", description="Adam steps on the corrections of a layer."
    )
    correction_rate: float = Field(
        1e-4, gt=0, le=1, title="Correction rate", description="Adam's step size for corrections."
    )
    steps: int = Field(500, ge=0, le=10_000, title="Steps", description="Adam updates of the coefficients.")
    batch_size: int = Field(16, ge=1, le=1024, title="Batch size", description="Images of each task in one update.")
    learning_rate: float = Field(
        1e-3, gt=0, le=1, title="Learning rate", description="Adam's step size for coefficients."
    )
    clamp: bool = Field(True, title="Clamp to [0, 1]", description="Keep coefficients in [0, 1] in the forward pass.")


class AwdParams(Params):
    """Parameters of AWD."""

    scaling: float = Field(
        0.3, ge=-2, le=2, title="Scaling coefficient λ", description="How much of the summed vectors to add."
    )
    penalty: float = Field(
        0.01, ge=0, le=100, title="Penalty α", description="How much the length of the redundant vector counts."
    )
    steps: int = Field(500, ge=0, le=10_000, title="Steps", description="Gradient steps for each layer.")
    learning_rate: float = Field(
        0.05, gt=0, le=10, title="Learning rate", description="First step size, in mean lengths of a task vector."
    )


class DopParams(Params):
    """Parameters of DOP."""

    stability: float = Field(
        0.8,
        ge=0,
        le=1,
        title="Stability α",
        description="How much the model merged so far counts beside the expert that is added.",
    )
    balance: Literal["adaptive", "fixed"] = Field(
        "adaptive", title="Balance", description="Let both losses fall alike, starting from α, or keep α."
    )
    smoothing: Annotated[float, OnlyWith(balance=("adaptive",))] = Field(
        0.999, ge=0, lt=1, title="Smoothing β", description="How slowly the adaptive balance moves."
    )
    energy: float = Field(
        0.99999, gt=0, le=1, title="Energy ε", description="Share of the singular values whose directions count."
    )
    directions: Literal["both", "left", "right"] = Field(
        "both", title="Directions", description="Left and right singular directions, or one side only."
    )
    steps: int = Field(200, ge=0, le=10_000, title="Steps", description="Adam steps for each matrix and expert.")
    learning_rate: float = Field(
        1e-4, gt=0, le=1, title="Learning rate", description="Adam's step size, in units of the weights."
    )


class FisherParams(Params):
    """Parameters of Fisher Merging."""

    examples: int = Field(256, ge=1, le=100_000, title="Images", description="Unlabelled images of each task.")
    normalise: bool = Field(True, title="Normalise", description="Divide each expert's Fisher information by its norm.")
    smallest: float = Field(
        1e-6, gt=0, le=1, title="Smallest weight", description="Added to every entry's Fisher information."
    )


class RegMeanParams(Params):
    """Parameters of RegMean."""

    examples: int = Field(256, ge=1, le=100_000, title="Images", description="Unlabelled images of each task.")
    off_diagonal: float = Field(
        0.95,
        ge=0,
        le=1,
        title="Off-diagonal factor",
        description="How much of the off-diagonal inner products is kept; below 1 the solution is stable.",
    )


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
            Preset(
                "official",
                "Authors' code: layer-wise",
                {"granularity": "layer", "batches_per_step": 2},
                "EnnengYang/AdaMerging",
            ),
            Preset(
                "official_pp",
                "Authors' code: layer-wise ++",
                {"granularity": "layer", "plus_plus": True, "batches_per_step": 2},
                "EnnengYang/AdaMerging",
            ),
            Preset(
                "fusionbench",
                "FusionBench: layer-wise",
                {"granularity": "layer", "clamp": False, "steps": 1000},
                "arXiv:2406.03280",
            ),
        ),
        learns="task_coefficients",
        weighted=False,
        stochastic=True,
        linear=lambda p, experts: p.initial,
        cost=Cost(
            holds_models=True,
            images=lambda p: BACKWARD * p.batch_size * p.batches_per_step * max(p.steps, 1),
            merges=lambda p: p.steps,
        ),
        quick={"steps": 2, "batch_size": 4},
        survey=SurveyEntry(
            place=7,
            method="AdaMerging",
            category="Weighted",
            level="Task or layer",
            tuning_free=False,
            data="unlabelled test",
        ),
    ),
    MergeRow(
        name="closed_form",
        title="Closed form",
        category="optimisation",
        params=ClosedFormParams,
        function=".merging.quadratic:closed_form",
        summary="The vector that differs least from every expert in the expert's own directions.",
        equation=r"\min_\tau \sum_k \tfrac{1}{\|\tau_k\|^2}"
        r"\big(\|(\tau-\tau_k)\tau_k^\top\|^2 + \omega\|\tau-\tau_k\|^2\big)",
        source="Objective of Cheng et al., WUDI-Merging, ICML 2025, arXiv:2503.08099, with a ridge",
        url="https://arxiv.org/abs/2503.08099",
        cost=Cost(holds_models=True),
        survey_with="wudi",
    ),
    MergeRow(
        name="wudi",
        title="WUDI-Merging",
        category="optimisation",
        params=WudiParams,
        function=".merging.quadratic:wudi",
        summary="A few steps from the sum of task vectors towards the least interference between experts.",
        equation=r"\min_\tau \sum_k \tfrac{1}{\|\tau_k\|^2} \|(\tau-\tau_k)\tau_k^\top\|^2",
        source="Cheng et al., WUDI-Merging, ICML 2025, arXiv:2503.08099",
        url="https://arxiv.org/abs/2503.08099",
        presets=(Preset("fusionbench", "FusionBench", {"matrices": "all", "steps": 400}, "arXiv:2406.03280"),),
        cost=Cost(holds_models=True, products=lambda p: p.steps),
        quick={"steps": 5},
        survey=SurveyEntry(
            place=26,
            method="WUDI-Merging",
            category="Optimisation",
            level="Global",
            tuning_free=False,
            remark="The closed form solves the same objective with a ridge.",
        ),
    ),
    MergeRow(
        name="doge",
        title="DOGE",
        category="optimisation",
        params=DogeParams,
        function=".merging.doge:doge",
        summary="Learns a correction outside the directions that all experts share, then adds their large entries.",
        equation=r"\theta = \theta_0 + \sum_k \lambda_k\, m_k \circ (\tau_k + \delta),\quad "
        r"\lambda_k = \eta/\|\tau_k\|",
        source="Wei et al., Modeling multi-task model merging as adaptive projective gradient descent, ICML 2025, "
        "arXiv:2501.01230",
        url="https://arxiv.org/abs/2501.01230",
        cost=Cost(holds_models=True, products=lambda p: p.steps),
        quick={"steps": 5},
        survey=SurveyEntry(
            place=25,
            method="DOGE",
            category="Optimisation",
            level="Task",
            tuning_free=False,
            remark="On task arithmetic, and with coefficients learned as in AdaMerging.",
        ),
    ),
    MergeRow(
        name="fisher",
        title="Fisher Merging",
        category="optimisation",
        params=FisherParams,
        function=".merging.fisher:fisher",
        summary="Averages weights entry by entry, trusting each expert where its predictions depend on the entry.",
        equation=r"\theta = \frac{\sum_k c_k (F_k + \epsilon)\,\theta_k}{\sum_k c_k (F_k + \epsilon)},\quad "
        r"F_k = \mathbb{E}\,(\nabla\log p(y|x))^2",
        source="Matena & Raffel, NeurIPS 2022, arXiv:2111.09832",
        url="https://arxiv.org/abs/2111.09832",
        needs=frozenset({"unlabelled", "heads"}),
        stochastic=True,
        cost=Cost(holds_models=True, images=lambda p: BACKWARD * p.examples),
        quick={"examples": 3},
        survey=SurveyEntry(
            place=9,
            method="Fisher-Merging",
            category="Weighted",
            level="Parameter",
            tuning_free=False,
            data="labelled validation",
            remark="The expected Fisher information needs no labels, so unlabelled images are enough.",
        ),
    ),
    MergeRow(
        name="regmean",
        title="RegMean",
        category="optimisation",
        params=RegMeanParams,
        function=".merging.regmean:regmean",
        summary="Merges linear layers by least squares on the inputs that each expert sees; averages the rest.",
        equation=r"W = \Big(\sum_k W_k G_k\Big)\Big(\sum_k G_k\Big)^{-1},\quad G_k = X_k^\top X_k",
        source="Jin et al., Dataless knowledge fusion, ICLR 2023, arXiv:2212.09849",
        url="https://arxiv.org/abs/2212.09849",
        needs=frozenset({"unlabelled"}),
        tokens=True,
        stochastic=True,
        cost=Cost(holds_models=True, images=lambda p: BACKWARD * p.examples),
        quick={"examples": 40},
        survey=SurveyEntry(
            place=10,
            method="RegMean",
            category="Weighted",
            level="Parameter",
            tuning_free=False,
            data="labelled validation",
            remark="Only inputs of layers count, so unlabelled images are enough.",
        ),
    ),
    MergeRow(
        name="doge_am",
        title="DOGE with AdaMerging",
        category="optimisation",
        params=DogeLearnedParams,
        function=".merging.doge:doge_am",
        summary="Corrects every expert outside the directions they share, then learns a coefficient for each layer.",
        equation=r"\min_\lambda \sum_k \mathbb{E}_x H\big(f(x;\ \theta_0 + \textstyle\sum_k \lambda_k^l\, "
        r"m_k^l \circ (\tau_k^l + \delta_k^l))\big)",
        source="Wei et al., Modeling multi-task model merging as adaptive projective gradient descent, ICML 2025, "
        "arXiv:2501.01230",
        url="https://arxiv.org/abs/2501.01230",
        needs=frozenset({"unlabelled", "heads"}),
        learns="layer_coefficients",
        presets=(Preset("fusionbench", "FusionBench", {"steps": 1000}, "arXiv:2406.03280"),),
        stochastic=True,
        cost=Cost(
            holds_models=True, images=lambda p: BACKWARD * p.batch_size * max(p.steps, 1), merges=lambda p: p.steps
        ),
        quick={"correction_steps": 5, "steps": 2, "batch_size": 4},
        survey_with="doge",
    ),
    MergeRow(
        name="awd",
        title="AWD (reconstruction)",
        category="optimisation",
        params=AwdParams,
        proportional=True,
        function=".merging.awd:awd",
        summary="Takes from all task vectors one redundant vector that makes them point alike, and adds the rest.",
        equation=r"\min_\delta \tfrac{1}{K(K-1)}\sum_{i\neq j}|\cos(\tau_i-\delta, \tau_j-\delta)| + "
        r"\alpha\|\delta\|,\quad \theta = \theta_0 + \lambda\sum_k (\tau_k - \delta)",
        source="Xiong et al., Multi-task model merging via adaptive weight disentanglement, 2024, arXiv:2411.18729",
        url="https://arxiv.org/abs/2411.18729",
        cost=Cost(holds_models=True, products=lambda p: p.steps),
        quick={"steps": 20},
        survey=SurveyEntry(
            place=24,
            method="AWD",
            category="Optimisation",
            level="Task",
            tuning_free=False,
            remark="A reconstruction from the paper's objective: the authors have published no code.",
        ),
    ),
    MergeRow(
        name="dop",
        title="DOP",
        category="optimisation",
        params=DopParams,
        function=".merging.dop:dop",
        summary="Adds expert after expert, moving each pair's matrices where neither is disturbed.",
        equation=r"\min_\tau \sum_i a_i \big(\|\Sigma_i U_i^\top(\tau-\tau_i)\|^2 + "
        r"\|(\tau-\tau_i) V_i\Sigma_i\|^2\big)",
        source="Yuan et al., Continual model merging without data: dual projections for balancing stability and "
        "plasticity, NeurIPS 2025",
        url="https://github.com/tanganke/fusion_bench",
        presets=(Preset("fixed", "Fixed balance", {"balance": "fixed", "stability": 0.5}, "FusionBench"),),
        order_matters=True,
        cost=Cost(holds_models=True, products=lambda p: p.steps),
        quick={"steps": 5},
        survey=SurveyEntry(place=27, method="DOP", category="Optimisation", level="Task", tuning_free=False),
    ),
)
