"""Calibrators: small modules that repair a merged model's features."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from .row import LATER, CalibratorRow, Params, Preset

Loss = Literal["l1", "l2", "mse", "smooth_l1"]
AdamSemantics = Literal["indep", "shared"]
InterventionFunction = Literal["noreft", "loreft", "direft", "consreft", "lobireft", "nodireft"]
Position = Literal["class", "first", "middle", "last", "patches", "all"]
MiniPlacement = Literal["none", "start", "shifted", "four"]
Coefficients = Literal["frozen", "task", "layer"]
LINEAR_MERGES = ("weight_average", "task_arithmetic", "adamerging")  # base + Σ λ τ, whose λ can go on learning


class TrainingParams(Params):
    """What every trained calibrator shares."""

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
    share: float = Field(
        1.0,
        ge=0.001,
        le=1,
        title="Share of adaptation images",
        description="How many of a task's adaptation images a run trains on, drawn with the training seed.",
        json_schema_extra=LATER,
    )


ADAM_SEMANTICS = (
    "indep: one Adam per task. shared: one Adam for all modules as under torch 1.x, where the modules "
    "of other tasks keep drifting on stale momentum; slow, only to reproduce old runs."
)


class OutputParams(TrainingParams):
    """What calibrators of the encoder's output share."""

    adam_semantics: AdamSemantics = Field("indep", title="Adam state", description=ADAM_SEMANTICS)


class DeepParams(TrainingParams):
    """What calibrators inside the encoder share."""

    adam_semantics: AdamSemantics = Field(
        "indep", title="Adam state", description=ADAM_SEMANTICS, json_schema_extra=LATER
    )


class SurgeryParams(OutputParams):
    """Parameters of Surgery."""

    rank: int = Field(16, ge=1, le=1024, title="Rank", description="Width of the module's hidden layer.")
    sharing: Literal["none", "all"] = Field(
        "none", title="Modules", description="none: a module per task. all: one module for every task."
    )


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
    dfa_step: Literal["sequential", "sum"] = Field(
        "sequential",
        title="Update of the one module",
        description="sequential: one Adam update per task in turn. sum: one Adam update on the mean over tasks. "
        "Only with sharing dfa or pda.",
    )
    pda_form: Literal["energy", "paper"] = Field(
        "energy",
        title="Score (pda)",
        description="energy: the proper energy score. paper: the printed Eq. 10, whose plus sign makes σ shrink to 0.",
    )
    pda_samples: int = Field(5, ge=2, le=64, title="Samples r (pda)", description="Draws per image in one update.")
    pda_pairs: Literal["all", "cyclic", "single"] = Field(
        "all", title="Pairs (pda)", description="Which pairs of draws enter the spread term."
    )
    pda_kappa: float = Field(
        0.5, ge=0, le=1, title="Weight κ (pda)", description="Weight of the first term of Eq. 10; only form paper."
    )
    bias: bool = Field(
        False,
        title="Additive terms",
        description="Give each of the three maps a bias, as Table 6 of the paper counts them; the code has none.",
        json_schema_extra=LATER,
    )

    @model_validator(mode="before")
    @classmethod
    def _no_divergence_in_scores(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("sharing") == "pda" and "kl_weight" not in value:
            value = {**value, "kl_weight": 0.0}
        return value


class SurgeryV2Params(DeepParams):
    """Parameters of SurgeryV2."""

    steps: int = Field(500, ge=1, le=100_000, title="Training steps", description="Adam updates for each task.")
    loss: Literal["l1", "mse"] = Field(
        "l1", title="Distance", description="Mean over images and dimensions, summed over the blocks and the output."
    )
    rank: int = Field(16, ge=1, le=1024, title="Rank", description="Width of every block's hidden layer.")
    statistic: Literal["mean", "class"] = Field(
        "mean", title="Aligned token", description="mean: the average of all tokens of a block. class: its class token."
    )


class IntervMergeParams(DeepParams):
    """Parameters of IntervMerge."""

    steps: int = Field(500, ge=1, le=100_000, title="Training steps", description="Adam updates for each task.")
    rank: int = Field(1, ge=1, le=256, title="Rank", description="Directions that an intervention can change.")
    function: InterventionFunction = Field(
        "noreft", title="Intervention", description="Row of the paper's Table 7; noreft is its default."
    )
    positions: Position = Field(
        "class", title="Tokens", description="Which tokens of a block are changed; each has its own module."
    )
    blocks: Literal["all", "every_second", "every_third", "every_fourth"] | tuple[int, ...] = Field(
        "all", title="Blocks", description="Which residual blocks are changed, counted from 0."
    )
    mini: MiniPlacement = Field(
        "none",
        title="Mini-intervention",
        description="Change only some dimensions: at the start, shifted from block to block, or four short slices.",
    )
    mini_dims: int = Field(
        64, ge=1, le=8192, title="Dimensions of a mini-intervention", description="Dimensions changed in a token."
    )
    mini_start: int = Field(
        0,
        ge=0,
        le=8191,
        title="First dimension of a mini-intervention",
        description="Where the changed dimensions begin; only with mini start.",
        json_schema_extra=LATER,
    )
    coefficients: Coefficients = Field(
        "frozen",
        title="Merging coefficients λ",
        description="frozen: the merge stays as it is. task, layer: one λ per expert, or per expert and layer, learns "
        "with the interventions; after Weight Averaging, Task Arithmetic or AdaMerging without transforms.",
        json_schema_extra=LATER,
    )
    registration: Literal["once", "triple"] = Field(
        "once",
        title="Updates per step",
        description="triple: every module is updated three times with each gradient, as in the published program, "
        "which registers it three times; only to reproduce its numbers.",
        json_schema_extra=LATER,
    )
    trained_tokens: Literal["all", "first"] = Field(
        "all",
        title="Trained tokens",
        description="first: of several tokens only the first one's modules are trained and the others stay random, as "
        "in the published program for patch tokens; only to reproduce its numbers.",
        json_schema_extra=LATER,
    )

    @model_validator(mode="after")
    def _mini_has_two_functions(self) -> IntervMergeParams:
        if self.mini != "none" and self.function not in ("noreft", "lobireft"):
            raise ValueError(f"mini-interventions exist for noreft and lobireft, not for {self.function}")
        if self.mini == "four" and self.mini_dims % 4:
            raise ValueError(f"four slices need mini_dims to be a multiple of 4, found {self.mini_dims}")
        if self.mini_start and self.mini != "start":
            raise ValueError(f"mini_start is for mini-interventions of placement start, not {self.mini}")
        return self


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
        departure="The bias is subtracted, as in the code; IntervMerge §3.1 writes it without the subtraction. "
        "ProbSurgery's Table 6 counts 131,072 parameters for one module; that is eight modules of 2·d·r.",
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
        departure="The code's second head gives log σ², not σ; a module has 3·d·h parameters (2·d·h at inference), "
        "where Table 6 counts P and M with additive terms (131,712 for d = 512: `bias` at inference). Its width of 128 "
        "is eight times Surgery's: compare with Surgery of rank 128 (equal width) or 192 (equal parameters). The last "
        "iterate is reported, never the best on test. "
        "PDA has no published code; Eq. 10's plus sign drives σ to 0, so the proper energy score is the default.",
    ),
    CalibratorRow(
        name="surgery_v2",
        title="SurgeryV2",
        category="deep",
        params=SurgeryV2Params,
        function=".calibration.surgery_v2:SurgeryV2",
        summary="Surgery on all tokens after every residual block, and on the output.",
        equation=r"X_l \leftarrow X_l - U_l\,\mathrm{ReLU}(D_l X_l)",
        source="Yang et al., SurgeryV2: Deep Representation Surgery, 2024, arXiv:2410.14389",
        url="https://arxiv.org/abs/2410.14389",
        presets=(Preset("paper", "ViT-B", {"rank": 16, "steps": 1000}, "official code: two updates an iteration"),),
        departure="Blocks and widths are derived from the encoder; the code fixes 12 and 768.",
        deep=True,
    ),
    CalibratorRow(
        name="interv_merge",
        title="IntervMerge",
        category="deep",
        params=IntervMergeParams,
        function=".calibration.interv_merge:IntervMerge",
        summary="Low-rank changes of the class token inside the merged encoder's blocks.",
        equation=r"v \leftarrow v + W_2^\top(W_1 v + b_1 - W_2 v - b_2)",
        source="Osial et al., Parameter-Efficient Interventions for Enhanced Model Merging, 2024, arXiv:2412.17023",
        url="https://arxiv.org/abs/2412.17023",
        presets=(
            Preset(
                "paper", "All blocks, rank 1", {"rank": 1, "steps": 1000}, "official code: two updates an iteration"
            ),
            Preset("rank_4", "All blocks, rank 4", {"rank": 4, "steps": 1000}, "IntervMerge, Table 1"),
            Preset(
                "mini",
                "64 shifting dimensions, bias only",
                {"rank": 1, "function": "lobireft", "mini": "shifted", "mini_dims": 64},
                "IntervMerge, Table 4",
            ),
        ),
        departure="The default function keeps the second bias b₂ of the code. Every module is trained once per step "
        "(the code registers each three times, and of the patch tokens trains only the first: `registration`, "
        "`trained_tokens`). Merging coefficients stay frozen unless `coefficients` says otherwise; then tasks take "
        "turns and λ moves at every task's turn, as in the code. Not the identity before training.",
        deep=True,
    ),
)
