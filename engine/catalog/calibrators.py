"""Calibrators of the encoder's output: small modules that repair a merged model's features."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ..recipe import LATER
from .row import PARITY, CalibratorRow, OnlyWith, Params, Preset
from .survey_entry import SurveyEntry

Sizes = Mapping[str, int]
Shapes = dict[str, tuple[int, ...]]
Loss = Literal["l1", "l2", "mse", "smooth_l1"]
AdamSemantics = Literal["indep", "shared"]


class TrainingParams(Params):
    """Parameters of every calibrator."""

    steps: int = Field(
        1000, ge=1, le=100_000, title="Training steps", description="Adam updates for each task's module."
    )
    batch_size: int = Field(16, ge=1, le=4096, title="Batch size", description="Images of a task in one update.")
    learning_rate: float = Field(1e-3, gt=0, le=1, title="Learning rate", description="Adam's step size.")
    loss: Loss = Field(
        "l1",
        title="Distance",
        description="Between corrected and expert features. l1, mse and smooth_l1 are means over images and "
        "dimensions; l2 is the mean Euclidean length.",
    )
    share: Annotated[float, LATER] = Field(
        1.0,
        ge=0.001,
        le=1,
        title="Share of adaptation images",
        description="How many of a task's adaptation images a run trains on, drawn with the training seed.",
    )

    @abstractmethod
    def shapes(self, sizes: Sizes) -> Shapes:
        """Return the shapes of one module's tensors.

        Args:
            sizes: of the encoder: ``dim`` (feature width); for calibrators inside it also ``width`` of a token,
                ``blocks`` and ``tokens``.
        """


ADAM_SEMANTICS = (
    "indep: one Adam per task. shared: one Adam for all modules as under torch 1.x, where the modules "
    "of other tasks keep drifting on stale momentum; slow, only to reproduce old runs."
)


class OutputParams(TrainingParams):
    """Parameters of every calibrator of the encoder's output."""

    adam_semantics: AdamSemantics = Field(
        "indep", title="Adam state", description=ADAM_SEMANTICS, json_schema_extra=PARITY
    )


class SurgeryParams(OutputParams):
    """Parameters of Surgery."""

    rank: int = Field(16, ge=1, le=1024, title="Rank", description="Width of the module's hidden layer.")
    sharing: Literal["none", "all"] = Field(
        "none", title="Modules", description="none: a module per task. all: one module for every task."
    )

    def shapes(self, sizes: Sizes) -> Shapes:
        """Return ``down`` (rank, dim) and ``up`` (dim, rank)."""
        return {"down": (self.rank, sizes["dim"]), "up": (sizes["dim"], self.rank)}


PDA = OnlyWith(sharing=("pda",))


class ProbSurgeryParams(OutputParams):
    """Parameters of ProbSurgery."""

    steps: int = Field(
        1000, ge=1, le=100_000, title="Training steps", description="Adam updates for each task (published: 5,000)."
    )
    hidden: int = Field(128, ge=1, le=2048, title="Hidden width", description="Width of the module's hidden layer.")
    kl_weight: float = Field(
        1e-4,
        ge=0,
        le=10,
        title="KL weight",
        description="Weight of the divergence (summed over dimensions) of the bias from a standard normal. With "
        "sharing pda it is 0 unless given.",
    )
    sharing: Literal["none", "dfa", "pda"] = Field(
        "none",
        title="Modules",
        description="none: a module per task. dfa: one module, each task aligned to its own expert. pda: one module "
        "whose predicted distribution is scored against the bias.",
    )
    dfa_step: Annotated[Literal["sequential", "sum"], OnlyWith(sharing=("dfa", "pda"))] = Field(
        "sequential",
        title="Update of the one module",
        description="sequential: one Adam update per task in turn. sum: one Adam update on the mean over tasks. "
        "Only with sharing dfa or pda.",
    )
    pda_form: Annotated[Literal["energy", "paper"], PDA] = Field(
        "energy",
        title="Score (pda)",
        description="energy: the proper energy score. paper: the printed Eq. 10, whose plus sign makes σ shrink to 0.",
    )
    pda_samples: Annotated[int, PDA] = Field(
        5, ge=2, le=64, title="Samples r (pda)", description="Draws per image in one update."
    )
    pda_pairs: Annotated[Literal["all", "cyclic", "single"], PDA] = Field(
        "all", title="Pairs (pda)", description="Which pairs of draws enter the spread term."
    )
    pda_kappa: Annotated[float, PDA, OnlyWith(pda_form=("paper",))] = Field(
        0.5, ge=0, le=1, title="Weight κ (pda)", description="Weight of the first term of Eq. 10; only form paper."
    )
    bias: Annotated[bool, LATER] = Field(
        False,
        title="Additive terms",
        description="Give each of the three maps a bias, as Table 6 of the paper counts them; the code has none.",
    )

    def shapes(self, sizes: Sizes) -> Shapes:
        """Return ``narrow`` (hidden, dim), ``mean`` and ``log_variance`` (dim, hidden), and biases of their outputs."""
        dim = sizes["dim"]
        maps = {"narrow": (self.hidden, dim), "mean": (dim, self.hidden), "log_variance": (dim, self.hidden)}
        return maps | ({f"{name}_bias": shape[:1] for name, shape in maps.items()} if self.bias else {})

    @model_validator(mode="before")
    @classmethod
    def _no_divergence_in_scores(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("sharing") == "pda" and "kl_weight" not in value:
            value = {**value, "kl_weight": 0.0}
        return value


ROWS = (
    CalibratorRow(
        name="surgery",
        title="Surgery",
        category="output",
        params=SurgeryParams,
        function=".calibration.surgery:Surgery",
        summary="A small two-layer module per task that predicts the representation bias and subtracts it.",
        equation=r"\hat z = z - U_t\,\mathrm{ReLU}(D_t z)",
        source="Yang et al., Representation Surgery for Multi-Task Model Merging, ICML 2024, arXiv:2402.02705",
        url="https://arxiv.org/abs/2402.02705",
        presets=(
            Preset("paper", "As published", {"rank": 16, "steps": 1000}, "arXiv:2402.02705"),
            Preset("width_128", "As wide as ProbSurgery", {"rank": 128, "steps": 1000}, "a fair baseline: equal width"),
            Preset(
                "parameters_192",
                "As many stored parameters as ProbSurgery",
                {"rank": 192, "steps": 1000},
                "a fair baseline: 2·192·d = 3·128·d",
            ),
            Preset("one_module", "One module for all tasks", {"rank": 16, "sharing": "all"}, "ProbSurgery's baseline"),
        ),
        quick={"rank": 3},
        variants=(
            {"sharing": "all"},
            {"adam_semantics": "shared"},
        ),
        survey=SurveyEntry(
            place=28,
            method="Surgery",
            category="Calibration",
            level="Global",
            tuning_free=False,
            data="unlabelled test",
            size="> 1×",
            remark="A calibrator behind any merge; it adds a module and leaves the merged weights alone.",
        ),
    ),
    CalibratorRow(
        name="prob_surgery",
        title="ProbSurgery",
        category="output",
        params=ProbSurgeryParams,
        function=".calibration.prob_surgery:ProbSurgery",
        summary="Predicts the representation bias as a normal distribution and subtracts its mean.",
        equation=r"\hat z = z - \mu,\quad \mu = M a,\ \log\sigma^2 = V a,\ a = \mathrm{ReLU}(P z)",
        source="Wei et al., Representation Surgery in Model Merging with Probabilistic Modeling, ICML 2025",
        presets=(
            Preset(
                "paper",
                "As published, a module per task",
                {"hidden": 128, "steps": 5000, "kl_weight": 1e-4, "sharing": "none"},
                "ProbSurgery, appendix B.3",
            ),
            Preset("short", "Near the plateau", {"hidden": 128, "steps": 500}, "ProbSurgery, Fig. 5"),
            Preset("dfa", "One module, DFA", {"hidden": 128, "steps": 5000, "sharing": "dfa"}, "ProbSurgery, Eq. 8"),
            Preset("pda", "One module, energy score", {"hidden": 128, "steps": 5000, "sharing": "pda"}, ""),
            Preset(
                "pda_literal",
                "One module, Eq. 10 as printed",
                {"hidden": 128, "steps": 5000, "sharing": "pda", "pda_form": "paper"},
                "ProbSurgery, Eq. 10",
            ),
        ),
        quick={"hidden": 6},
        variants=(
            {"sharing": "dfa"},
            {"sharing": "dfa", "dfa_step": "sum"},
            {"sharing": "pda", "pda_samples": 3},
            {"bias": True},
        ),
        survey=SurveyEntry(
            place=29,
            method="ProbSurgery",
            category="Calibration",
            level="Global",
            tuning_free=False,
            data="unlabelled test",
            size="> 1×",
            remark="A calibrator behind any merge; it adds a module and leaves the merged weights alone.",
        ),
    ),
)
