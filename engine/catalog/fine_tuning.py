"""Recipes of fine-tuning: how an expert is trained so that it merges well."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from .row import PARITY, FineTuningRow, NoParams, OnlyWith, Params, Preset

Target = Literal["q", "k", "v", "out", "mlp"]
Augmentation = Literal["none", "shift", "crop", "shift_flip", "crop_flip"]


class StandardParams(Params):
    """Parameters of standard fine-tuning."""

    accumulate: bool = Field(
        False,
        title="Add gradients up",
        description="Never clear gradients between steps, as SAFT's published baseline does, in place of one batch's.",
        json_schema_extra=PARITY,
    )


class AttentionParams(Params):
    """Parameters of attention-only fine-tuning."""

    biases: bool = Field(False, title="Biases too", description="Also train the biases of attention.")


class MlpParams(Params):
    """Parameters of training perceptrons only."""

    matrices: Literal["first", "second", "both"] = Field(
        "first",
        title="Matrices",
        description="Of each block's perceptron; one of them has as many parameters as attention where it is four "
        "times as wide.",
    )
    biases: bool = Field(False, title="Biases too", description="Also train their biases.")


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class LoraParams(Params):
    """Parameters of low-rank adapters."""

    rank: int = Field(16, ge=1, le=1024, title="Rank r", description="Rows of A and columns of B.")
    alpha: float = Field(
        32.0, gt=0, le=1024, title="Scale α", description="The product of the factors is multiplied by α / r."
    )
    targets: Annotated[tuple[Target, ...], BeforeValidator(_split)] = Field(
        ("q", "v"), title="Targets", description="Matrices of each block that get adapters: q, k, v, out, mlp."
    )

    @field_validator("targets")
    @classmethod
    def _some(cls, value: tuple[Target, ...]) -> tuple[Target, ...]:
        if not value or len(set(value)) != len(value):
            raise ValueError("name at least one of q, k, v, out, mlp, each once")
        return value


class OsrmParams(LoraParams):
    """Parameters of OSRM."""

    rank: int = Field(8, ge=1, le=1024, title="Rank r", description="Rows of A and columns of B.")
    alpha: float = Field(
        16.0, gt=0, le=1024, title="Scale α", description="The product of the factors is multiplied by α / r."
    )
    rule: Literal["paper", "code", "own", "random"] = Field(
        "paper",
        title="Subspace",
        description="Where all inputs of the other tasks are smallest (the paper), or one mean vector a task (the "
        "authors' code); as controls where the task's own inputs are, or a random one.",
    )
    images: int = Field(
        100, ge=1, le=10_000, title="Images of each other task", description="Unlabelled images whose inputs count."
    )

    @property
    def looks(self) -> bool:
        """Return whether samples of other tasks are looked at, as the controls do not."""
        return self.rule in ("paper", "code")


class SamParams(Params):
    """Parameters of sharpness-aware minimisation."""

    rho: float = Field(
        0.05, gt=0, le=10, title="Radius ρ", description="How far to climb before the gradient is taken."
    )
    scale: Literal["none", "weights"] = Field(
        "none",
        title="Scale by",
        description="Climb the same distance in all directions, or further along large weights (ASAM).",
    )
    eta: Annotated[float, OnlyWith(scale=("weights",))] = Field(
        0.01, ge=0, le=1, title="Offset η", description="Added to the magnitudes of weights; used by ASAM only."
    )


class SaftParams(Params):
    """Parameters of SAFT."""

    rho: float = Field(0.5, gt=0, le=10, title="Radius ρ", description="How far to climb before the gradient is taken.")
    length: Literal["code", "printed"] = Field(
        "code",
        title="Length of the climb",
        description="ρ in units of the weights (the authors' code), or divided by the plain gradient's norm (Eq. 7).",
    )
    accumulate: bool = Field(
        False,
        title="Add gradients up",
        description="Keep the last step's gradient in the climb, as the published loop does.",
        json_schema_extra=PARITY,
    )


class AscentParams(Params):
    """Parameters of gradient ascent."""

    stop_at_chance: bool = Field(
        True,
        title="Stop at chance",
        description="Take no step on a batch that is predicted no better than by guessing.",
    )


class Kd4mtlParams(Params):
    """Parameters of KD4MTL."""

    weight: float = Field(
        1.0, ge=0, le=1000, title="Weight λ", description="Of the distance between features, beside the labels' loss."
    )
    adaptor_rate: float = Field(
        0.1, gt=0, le=10, title="Adaptors' rate", description="Learning rate of the adaptors' own Adam; it stays."
    )
    adaptor_decay: float = Field(
        5e-4, ge=0, le=1, title="Adaptors' decay", description="Weight decay in the gradient of the adaptors."
    )
    experts: str | None = Field(
        None,
        max_length=64,
        title="Imitated experts",
        description="The way they were trained, such as standard; by default the first of each task.",
    )


ADAMW = r"\theta \leftarrow \mathrm{AdamW}\big(\theta, \nabla_\theta L(\theta)\big)"
TANGENT = "Ortiz-Jimenez et al., Task arithmetic in the tangent space, NeurIPS 2023, arXiv:2305.12827"
TANGENT_URL = "https://arxiv.org/abs/2305.12827"
PETA = (
    "Tang et al., Parameter-efficient multi-task model fusion with partial linearization, ICLR 2024, arXiv:2310.04742"
)
SAFT = "Lee et al., Mitigating parameter interference by sharpness-aware fine-tuning, ICLR 2025, arXiv:2504.14662"

ROWS = (
    FineTuningRow(
        name="standard",
        title="Standard",
        category="fine_tuning",
        params=StandardParams,
        function=".training.standard:standard",
        summary="Trains all weights of the encoder on the frozen head.",
        equation=ADAMW,
        source="Ilharco et al., Editing models with task arithmetic, ICLR 2023, arXiv:2212.04089, Appendix B",
        url="https://arxiv.org/abs/2212.04089",
        presets=(Preset("saft_baseline", "SAFT's published baseline", {"accumulate": True}, "BAIKLAB/SAFT-Merge"),),
        cost=1.0,
    ),
    FineTuningRow(
        name="linearised",
        title="Linearised",
        category="fine_tuning",
        params=NoParams,
        function=".training.linearised:linearised",
        summary="Trains the first-order approximation of the encoder around the base, whose features add up exactly.",
        equation=r"f_{\mathrm{lin}}(x;\theta) = f(x;\theta_0) + \nabla_\theta f(x;\theta_0)\cdot(\theta-\theta_0)",
        source=TANGENT,
        url=TANGENT_URL,
        forward="linearised",
        cost=2.0,
    ),
    FineTuningRow(
        name="attention_only",
        title="Attention only",
        category="fine_tuning",
        params=AttentionParams,
        function=".training.standard:attention_only",
        summary="Trains the matrices of attention only; everything else stays the base's to the bit.",
        equation=r"\theta^{q,k,v,o} \leftarrow \mathrm{AdamW}\big(\theta^{q,k,v,o}, \nabla L\big)",
        source="Jin et al., Fine-tuning attention modules only, ICLR 2025, arXiv:2407.07089",
        url="https://arxiv.org/abs/2407.07089",
        cost=0.85,
    ),
    FineTuningRow(
        name="mlp_only",
        title="Perceptrons only",
        category="fine_tuning",
        params=MlpParams,
        function=".training.standard:mlp_only",
        summary="Trains one matrix of every perceptron, as many parameters as attention's: the control of training "
        "attention only.",
        equation=r"\theta^{\mathrm{fc}} \leftarrow \mathrm{AdamW}\big(\theta^{\mathrm{fc}}, \nabla L\big)",
        source="A control for Jin et al., Fine-tuning attention modules only, ICLR 2025, arXiv:2407.07089",
        url="https://arxiv.org/abs/2407.07089",
        variants=({"matrices": "both", "biases": True}, {"matrices": "second"}),
        cost=0.76,
    ),
    FineTuningRow(
        name="lora",
        title="LoRA",
        category="fine_tuning",
        params=LoraParams,
        function=".training.low_rank:lora",
        summary="Trains a product of two small matrices beside chosen matrices of every block.",
        equation=r"W x + \tfrac{\alpha}{r} B A x,\quad B_0 = 0",
        source="Hu et al., LoRA, ICLR 2022, arXiv:2106.09685",
        url="https://arxiv.org/abs/2106.09685",
        presets=(Preset("peta", "As in L-LoRA", {"rank": 16, "alpha": 32.0, "targets": ("q",)}, "tanganke/peta"),),
        factors=True,
        cost=0.82,
    ),
    FineTuningRow(
        name="l_lora",
        title="L-LoRA",
        category="fine_tuning",
        params=LoraParams,
        function=".training.low_rank:l_lora",
        summary="Linearises every adapter by itself, which is LoRA whose A stays at its random start.",
        equation=r"W x + \tfrac{\alpha}{r} B A_0 x",
        source=PETA,
        url="https://arxiv.org/abs/2310.04742",
        presets=(Preset("peta", "Authors' program", {"rank": 16, "alpha": 32.0, "targets": ("q",)}, "tanganke/peta"),),
        factors=True,
        cost=0.83,
    ),
    FineTuningRow(
        name="sam",
        title="SAM",
        category="fine_tuning",
        params=SamParams,
        function=".training.sharpness:sam",
        summary="Steps with the gradient at the top of a small climb, which leads to flat minima.",
        equation=r"\theta \leftarrow \mathrm{AdamW}\big(\theta, \nabla L(\theta+\varepsilon)\big),\quad "
        r"\varepsilon = \rho\,\nabla L / \|\nabla L\|_2",
        source="Foret et al., Sharpness-aware minimization, ICLR 2021, arXiv:2010.01412",
        url="https://arxiv.org/abs/2010.01412",
        presets=(Preset("asam", "ASAM", {"rho": 0.5, "scale": "weights"}, "Kwon et al., ICML 2021, arXiv:2102.11600"),),
        cost=1.9,
    ),
    FineTuningRow(
        name="saft",
        title="SAFT",
        category="fine_tuning",
        params=SaftParams,
        function=".training.sharpness:saft",
        summary="SAM that climbs further along large weights, so that an expert stands what others add to it.",
        equation=r"\varepsilon = \rho\,\frac{\theta^2\circ\nabla L}{\|\,|\theta|\circ\nabla L\,\|_2}",
        source=SAFT,
        url="https://arxiv.org/abs/2504.14662",
        presets=(Preset("loop", "Published loop", {"accumulate": True}, "BAIKLAB/SAFT-Merge"),),
        cost=2.1,
    ),
    FineTuningRow(
        name="osrm",
        title="OSRM",
        category="fine_tuning",
        params=OsrmParams,
        function=".training.osrm:osrm",
        summary="LoRA whose A starts where the other tasks' inputs have least energy.",
        equation=r"A = \arg\min_{AA^\top=I} \|A H^\top\|_F,\quad H = \text{inputs of all other tasks}",
        source="Zhang & Zhou, Unraveling LoRA interference, ACL 2025, arXiv:2505.22934",
        url="https://arxiv.org/abs/2505.22934",
        needs=frozenset({"other_tasks"}),
        factors=True,
        cost=0.86,
    ),
    FineTuningRow(
        name="joint",
        title="Joint",
        category="fine_tuning",
        params=NoParams,
        function=".training.standard:joint",
        summary="Trains one model on all tasks together, each batch with as many images of each: what merging is "
        "measured against.",
        equation=r"\theta \leftarrow \mathrm{AdamW}\Big(\theta, \nabla_\theta \tfrac1T\sum_t L_t(\theta)\Big)",
        source="Caruana, Multitask learning, Machine Learning 28, 1997, doi:10.1023/A:1007379606734",
        url="https://doi.org/10.1023/A:1007379606734",
        joint=True,
        cost=1.0,
    ),
    FineTuningRow(
        name="kd4mtl",
        title="KD4MTL",
        category="fine_tuning",
        params=Kd4mtlParams,
        function=".training.imitation:kd4mtl",
        summary="Trains one model on all tasks together while its features, mapped by a matrix for each task, imitate "
        "those of the task's expert.",
        equation=r"\tfrac1T\sum_t\Big[L_t(\theta) + \lambda\,\Big\|\frac{A_t f_\theta(x_t)}{\|A_t f_\theta(x_t)\|} - "
        r"\frac{f_{\theta_t}(x_t)}{\|f_{\theta_t}(x_t)\|}\Big\|^2\Big]",
        source="Li & Bilen, Knowledge distillation for multi-task learning, ECCV Workshops 2020, arXiv:2007.06889",
        url="https://arxiv.org/abs/2007.06889",
        needs=frozenset({"experts"}),
        joint=True,
        reference="kd4mtl",
        cost=1.35,
    ),
    FineTuningRow(
        name="gradient_ascent",
        title="Gradient ascent",
        category="fine_tuning",
        params=AscentParams,
        function=".training.ascent:gradient_ascent",
        summary="Trains on the negative loss to forget a task: the control of negated task vectors.",
        equation=r"\theta \leftarrow \mathrm{AdamW}\big(\theta, -\nabla_\theta L(\theta)\big)",
        source="Ilharco et al., Editing models with task arithmetic, ICLR 2023, arXiv:2212.04089, §3",
        url="https://arxiv.org/abs/2212.04089",
        cost=1.06,
    ),
)

# Carried out by `zoo distill` with the standard recipe; what it costs depends on the teacher.
DISTILLATION = FineTuningRow(
    name="distillation",
    title="Distillation",
    category="architecture",
    params=NoParams,
    function=".training.standard:standard",
    summary="Trains the zoo's base on the predictions of a model of any architecture, which so becomes an expert that "
    "can be merged; `zoo distill`.",
    equation=r"(1-w)\,\mathrm{CE}(y, p_\theta) + w\,T^2\,\mathrm{KL}\big(q^{(T)} \,\|\, p_\theta^{(T)}\big)",
    source="Hinton et al., Distilling the knowledge in a neural network, 2015, arXiv:1503.02531",
    url="https://arxiv.org/abs/1503.02531",
    needs=frozenset({"teacher"}),
)
