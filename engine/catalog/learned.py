"""Merge methods that learn masks or search coefficients with images."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..recipe import LATER
from .row import BACKWARD, Cost, MergeRow, OnlyWith, Params, Preset
from .survey_entry import SurveyEntry

LEARNED = OnlyWith(coefficients=("task", "layer"))


class ConcreteParams(Params):
    """Parameters of Concrete Subspace Learning."""

    coefficients: Literal["fixed", "task", "layer"] = Field(
        "fixed",
        title="Coefficients",
        description="Fixed (Concrete task arithmetic), or learned as AdaMerging does, by task or by layer.",
    )
    scaling: float = Field(
        0.3, ge=0, le=2, title="Scaling coefficient λ", description="Of every expert, or where learning starts."
    )
    temperature: float = Field(
        0.5, gt=0, le=10, title="Temperature", description="Of the relaxed mask; near 0 its entries are 0 or 1."
    )
    mask: Literal["continuous", "discrete"] = Field(
        "continuous", title="Final mask", description="One more relaxed sample, or one of zeros and ones."
    )
    steps: int = Field(2000, ge=0, le=100_000, title="Mask steps", description="Adam updates of the mask's logits.")
    batch_size: int = Field(16, ge=1, le=1024, title="Batch size", description="Images of each task in one update.")
    learning_rate: float = Field(1e-3, gt=0, le=1, title="Mask learning rate", description="Adam's step size.")
    inner_learning_rate: Annotated[float, LEARNED] = Field(
        1.0, gt=0, le=10, title="Inner learning rate", description="Of the coefficients' step before each mask update."
    )
    coefficient_steps: Annotated[int, LEARNED] = Field(
        1000, ge=0, le=100_000, title="Coefficient steps", description="Adam updates of coefficients under the mask."
    )
    coefficient_learning_rate: Annotated[float, LEARNED] = Field(
        1e-3, gt=0, le=1, title="Coefficient learning rate", description="Adam's step size for those."
    )
    clamp: bool = Field(
        False, title="Clamp to [0, 1]", description="Keep learned coefficients in [0, 1] in the forward pass."
    )

    @property
    def updates(self) -> int:
        """Return the number of merges while learning: one for each update of the mask or of coefficients."""
        return self.steps if self.coefficients == "fixed" else 2 * self.steps + self.coefficient_steps


class EvolutionaryParams(Params):
    """Parameters of the evolutionary search."""

    granularity: Literal["task", "block"] = Field(
        "task", title="Granularity", description="One coefficient a task, or one a task and transformer block."
    )
    on: Literal["task_vectors", "ties"] = Field(
        "ties", title="Combine", description="Task vectors as they are, or trimmed and sign-elected as in TIES."
    )
    density: Annotated[float, OnlyWith(on=("ties",))] = Field(
        0.2, gt=0, le=1, title="Density", description="Share of entries that TIES keeps, or where its search starts."
    )
    search_densities: Annotated[bool, LATER] = Field(
        False,
        title="Search densities too",
        description="One density an expert beside the coefficients, in twentieths; of trimmed task vectors (TIES).",
    )
    objective: Literal["accuracy", "loss"] = Field(
        "accuracy", title="Objective", description="Mean accuracy or mean cross-entropy over the tasks."
    )
    evaluations: int = Field(
        100, ge=1, le=100_000, title="Evaluations", description="The budget: merged models that are scored."
    )
    examples: int = Field(
        100, ge=1, le=100_000, title="Images", description="Labelled validation images of each task that score a model."
    )
    initial: float = Field(0.3, ge=0, le=2, title="Initial coefficient", description="Where the search starts.")
    sigma: float = Field(
        0.1667, gt=0, le=1, title="Initial step σ", description="Standard deviation of the first candidates."
    )
    largest: float = Field(
        1.0, gt=0, le=2, title="Largest coefficient", description="Coefficients are searched from 0 to this."
    )

    @model_validator(mode="after")
    def _densities_are_of_ties(self) -> EvolutionaryParams:
        if self.search_densities and self.on != "ties":
            raise ValueError("densities are searched of trimmed task vectors; set `on: ties`")
        return self


ROWS = (
    MergeRow(
        name="concrete",
        title="Concrete Subspace Learning",
        category="optimisation",
        params=ConcreteParams,
        function=".merging.concrete:concrete",
        summary="Learns one mask for all task vectors by making predictions on unlabelled images certain.",
        equation=r"\min_x \mathbb{E}_m \sum_k H\big(f(\cdot;\ \theta_0 + "
        r"\tfrac{m}{\bar m} \circ \textstyle\sum_k \lambda_k \tau_k)\big),\quad "
        r"m = \sigma\big((\log\tfrac{u}{1-u} + x)/T\big)",
        source="Tang et al., Concrete Subspace Learning, 2023, arXiv:2312.06173",
        url="https://arxiv.org/abs/2312.06173",
        needs=frozenset({"unlabelled", "heads"}),
        presets=(
            Preset("concrete_ta", "Concrete task arithmetic", {"coefficients": "fixed"}, "arXiv:2312.06173"),
            Preset(
                "concrete_am_task",
                "Concrete AdaMerging, task-wise",
                {"coefficients": "task", "steps": 1000},
                "arXiv:2312.06173",
            ),
            Preset(
                "concrete_am_layer",
                "Concrete AdaMerging, layer-wise",
                {"coefficients": "layer", "steps": 1000},
                "arXiv:2312.06173",
            ),
        ),
        learns="mask",
        stochastic=True,
        cost=Cost(
            holds_models=True, images=lambda p: BACKWARD * p.batch_size * max(p.updates, 1), merges=lambda p: p.updates
        ),
        quick={"steps": 2, "batch_size": 4, "coefficient_steps": 2},
    ),
    MergeRow(
        name="evolutionary",
        title="Evolutionary search",
        category="optimisation",
        params=EvolutionaryParams,
        function=".merging.evolutionary:evolutionary",
        summary="Searches coefficients and densities of task vectors by CMA-ES, scored on labelled images.",
        equation=r"\max_{\lambda \in [0, b]^n} \tfrac{1}{K}\sum_k "
        r"\mathrm{acc}_k^{\mathrm{val}}\big(\theta_0 + \textstyle\sum_k \lambda_k \hat\tau_k\big)",
        source="Akiba et al., Evolutionary model merge, Nature Machine Intelligence 2025, arXiv:2403.13187; "
        "Hansen, CMA-ES, 2016, arXiv:1604.00772",
        url="https://arxiv.org/abs/2403.13187",
        needs=frozenset({"validation", "heads"}),
        learns="task_coefficients",
        presets=(
            Preset("paper", "Paper's budget", {"initial": 0.5, "evaluations": 1000}, "arXiv:2403.13187"),
            Preset("blocks", "By block", {"granularity": "block", "evaluations": 1000}, "arXiv:2403.13187"),
            Preset(
                "densities",
                "Weights and densities, by block",
                {"granularity": "block", "search_densities": True, "initial": 0.5, "density": 0.5, "evaluations": 1000},
                "arXiv:2403.13187",
            ),
        ),
        stochastic=True,
        cost=Cost(holds_models=True, images=lambda p: p.examples * p.evaluations, merges=lambda p: p.evaluations),
        quick={"evaluations": 9, "examples": 16},
        survey=SurveyEntry(
            place=6,
            method="Evolutionary-model-merge",
            category="Weighted",
            level="Layer",
            tuning_free=True,
            data="labelled validation",
            remark="Coefficients are searched; reordering layers does not apply to experts of one base.",
        ),
    ),
)
