"""Transforms: they change task vectors before the merge, or the merged vector after it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..recipe import LATER
from .row import PARITY, Cost, NoParams, OnlyWith, Params, Preset, TransformRow
from .survey_entry import SurveyEntry

LWPTV = "Zhang et al., Merging Smarter, Generalizing Better (LwPTV), NeurIPS 2025, arXiv:2506.09093"
LWPTV_URL = "https://arxiv.org/abs/2506.09093"


class LayerPruningParams(Params):
    """Parameters of transforms that prune whole layers."""

    eta: float = Field(
        0.7, ge=0, le=1, title="Pruning ratio η", description="Share of each expert's layers given back to the base."
    )
    count_frozen: int = Field(
        0,
        ge=0,
        le=100,
        title="Frozen layers counted",
        description="Untrained tensors outside the image encoder that count in the ratio; 6 reproduces numbers "
        "published with complete checkpoints.",
        json_schema_extra=PARITY,
    )


class RandomLayersParams(LayerPruningParams):
    """Parameters of layers that are kept at random."""

    as_many: Annotated[bool, LATER] = Field(
        False,
        title="As many layers",
        description="Keep as many layers as LwPTV would, whatever their norm, instead of layers up to its norm.",
    )


class LayerMaskParams(LayerPruningParams):
    """Parameters of LwPTV's mask, also where layers are chosen by absolute value."""

    shared: Annotated[bool, LATER] = Field(
        True,
        title="Shared mask",
        description="Keep a layer for all experts when any expert keeps it (the paper); else each expert by itself.",
    )


class LwptvParams(LayerMaskParams):
    """Parameters of LwPTV."""

    rescale: Annotated[bool, LATER] = Field(
        True,
        title="Scale learned coefficients",
        description="Multiply layer-wise coefficients that are learned behind it by η (the paper); concerns no other "
        "merge.",
    )


class EntryPruningParams(Params):
    """Parameters of transforms that prune single entries."""

    eta: float = Field(
        0.7, ge=0, le=1, title="Pruning ratio η", description="Share of each expert's entries given back to the base."
    )
    shared: bool = Field(
        True, title="Shared mask", description="Keep an entry for all experts when any expert keeps it."
    )


class DareParams(Params):
    """Parameters of DARE."""

    drop_rate: float = Field(
        0.5, ge=0, le=0.999, title="Drop rate p", description="Probability that an entry of a task vector is dropped."
    )
    rescale: bool = Field(True, title="Rescale", description="Divide what is left by 1 − p.")


class RandomMaskParams(Params):
    """Parameters of the random mask."""

    keep: float = Field(0.3, ge=0, le=1, title="Share kept", description="Probability that an entry is kept.")


class WiseFtParams(Params):
    """Parameters of WiSE-FT."""

    alpha: float = Field(
        0.5, ge=0, le=1, title="Mixing α", description="How far from the base towards each expert: 0 base, 1 expert."
    )


class LinesParams(Params):
    """Parameters of LiNeS."""

    alpha_from_norms: bool = Field(
        True,
        title="α from norms",
        description="Take α from the norms of the summed and the merged vector (1/K for a plain sum).",
    )
    alpha: Annotated[float, OnlyWith(alpha_from_norms=(False,))] = Field(
        0.3, ge=0, le=2, title="Scale of the first block α", description="Used when α is not taken from norms."
    )
    beta: float = Field(
        0.5, ge=0, le=2, title="Growth β", description="How much more than the first block the last block is scaled."
    )


class ComponentParams(Params):
    """Parameters of keeping or dropping one component."""

    what: Literal["keep", "drop"] = Field("keep", title="Do", description="Keep its layers alone, or all others.")
    component: Literal["attention", "mlp", "norm", "embedding", "projection"] = Field(
        "attention", title="Component", description="Layers of this kind, in all blocks."
    )


class RepairParams(Params):
    """Parameters of REPAIR."""

    images: int = Field(
        32, ge=2, le=2000, title="Images a task", description="Unlabelled images on which statistics are taken."
    )
    layers: Literal["hidden", "both"] = Field(
        "hidden",
        title="Layers",
        description="Of each block's perceptron: outputs in front of the activation, or those behind it as well.",
    )


ROWS = (
    TransformRow(
        name="lwptv",
        title="LwPTV",
        category="transform",
        params=LwptvParams,
        function=".merging.lwptv:lwptv",
        after_learning=".merging.lwptv:scale_learned",
        summary="Gives the least salient layers back to the base, so that merging hurts other domains less.",
        equation=r"s_k^l = \mathbb{E}\,|\tau_k^l - \bar\tau^l|,\quad \hat m^l = \bigvee_k "
        r"\mathbb{1}[s_k^l > s_k^{(\lfloor L\eta\rfloor)}],\quad \hat\tau_k^l = \hat m^l\,\tau_k^l",
        source=LWPTV,
        url=LWPTV_URL,
        presets=(Preset("paper", "Paper", {"eta": 0.7}, "arXiv:2506.09093"),),
        min_experts=2,
        cost=Cost(sweeps=2),
    ),
    TransformRow(
        name="absolute_value",
        title="Absolute value",
        category="transform",
        params=LayerMaskParams,
        function=".merging.lwptv:absolute_value",
        summary="Prunes the layers whose task vectors are smallest on average.",
        equation=r"s_k^l = \mathbb{E}\,|\tau_k^l|",
        source=LWPTV + ", Table 3",
        url=LWPTV_URL,
        cost=Cost(sweeps=2),
    ),
    TransformRow(
        name="pwptv",
        title="PwPTV",
        category="transform",
        params=EntryPruningParams,
        function=".merging.entry_pruning:pwptv",
        summary="Prunes the entries that differ least from the experts' mean.",
        equation=r"m_{k,p} = \mathbb{1}[\,|\tau_{k,p} - \bar\tau_p| > s_k^{(\lfloor d\eta\rfloor)}]",
        source=LWPTV + ", Table 3",
        url=LWPTV_URL,
        min_experts=2,
        cost=Cost(reads=0, sweeps=12),
    ),
    TransformRow(
        name="magnitude",
        title="Magnitude pruning",
        category="transform",
        params=EntryPruningParams,
        function=".merging.entry_pruning:magnitude",
        summary="Prunes the smallest entries of every task vector.",
        equation=r"m_{k,p} = \mathbb{1}[\,|\tau_{k,p}| > s_k^{(\lfloor d\eta\rfloor)}]",
        source=LWPTV + ", Table 3; Han et al., NeurIPS 2015, arXiv:1506.02626",
        url="https://arxiv.org/abs/1506.02626",
        cost=Cost(reads=0, sweeps=10),
    ),
    TransformRow(
        name="dare",
        title="DARE",
        category="transform",
        params=DareParams,
        function=".merging.dropping:dare",
        summary="Drops entries at random and rescales the rest.",
        equation=r"\tilde\tau_k = \frac{m_k \circ \tau_k}{1-p},\quad m_k \sim \mathrm{Bernoulli}(1-p)",
        source="Yu et al., Language models are super Mario, ICML 2024, arXiv:2311.03099",
        url="https://arxiv.org/abs/2311.03099",
        presets=(Preset("language_models", "Language models", {"drop_rate": 0.9}, "arXiv:2311.03099"),),
        stochastic=True,
        cost=Cost(reads=0, sweeps=8),
        survey=SurveyEntry(
            place=12,
            method="DARE",
            category="Sparse subspace",
            level="Global",
            tuning_free=True,
            remark="A transform in front of any merge method, as in the paper.",
        ),
    ),
    TransformRow(
        name="random_mask",
        title="Random mask",
        category="transform",
        params=RandomMaskParams,
        function=".merging.dropping:random_mask",
        summary="Keeps a random part of the entries, the same for all experts, as a control.",
        equation=r"\tilde\tau_k = m \circ \tau_k,\quad m \sim \mathrm{Bernoulli}(q)",
        source=LWPTV + ", Table 3",
        url=LWPTV_URL,
        stochastic=True,
        cost=Cost(reads=0, sweeps=8),
    ),
    TransformRow(
        name="equal_norm",
        title="Equal norm",
        category="transform",
        params=LayerPruningParams,
        function=".merging.equal_norm:equal_norm",
        summary="Shrinks all task vectors by one factor to the norm that LwPTV would leave, as a control.",
        equation=r"\tilde\tau_k = c\,\tau_k,\quad c = \|\hat m \circ \textstyle\sum_k \tau_k\|_2 \,/\, "
        r"\|\textstyle\sum_k \tau_k\|_2",
        source="Control of " + LWPTV,
        url=LWPTV_URL,
        min_experts=2,
        cost=Cost(reads=2, sweeps=2),
    ),
    TransformRow(
        name="random_layers",
        title="Random layers",
        category="transform",
        params=RandomLayersParams,
        function=".merging.equal_norm:random_layers",
        summary="Keeps random layers up to the norm that LwPTV would leave, or as many, the same for all experts, as a "
        "control.",
        equation=r"\tilde\tau_k^l = c^l\,\tau_k^l,\quad \|c \circ \textstyle\sum_k \tau_k\|_2 = "
        r"\|\hat m \circ \textstyle\sum_k \tau_k\|_2",
        source="Control of " + LWPTV,
        url=LWPTV_URL,
        min_experts=2,
        stochastic=True,
        cost=Cost(reads=2, sweeps=2),
    ),
    TransformRow(
        name="component",
        title="Component",
        category="transform",
        params=ComponentParams,
        function=".merging.components:component",
        summary="Keeps or drops the layers of one kind, such as attention, as a control of training them alone.",
        equation=r"\tilde\tau_k^l = \mathbb{1}[l \in C]\,\tau_k^l",
        source="A control for Jin et al., Fine-tuning attention modules only, ICLR 2025, arXiv:2407.07089",
        url="https://arxiv.org/abs/2407.07089",
        quick={"component": "mlp"},
        variants=({"what": "drop", "component": "mlp"},),
        cost=Cost(reads=0, sweeps=1),
    ),
    TransformRow(
        name="wise_ft",
        title="WiSE-FT",
        category="transform",
        params=WiseFtParams,
        function=".merging.dropping:wise_ft",
        summary="Moves every expert part of the way back to the base before merging.",
        equation=r"\theta_k \leftarrow (1-\alpha)\,\theta_0 + \alpha\,\theta_k",
        source="Wortsman et al., Robust fine-tuning of zero-shot models, CVPR 2022, arXiv:2109.01903",
        url="https://arxiv.org/abs/2109.01903",
    ),
    TransformRow(
        name="lines",
        title="LiNeS",
        category="transform",
        params=LinesParams,
        function=".merging.lines:lines",
        summary="Scales the merged vector by depth, so that shallow layers keep more of the base.",
        equation=r"\lambda^\ell = \alpha + \beta\,\frac{\ell}{B-1}",
        source="Wang et al., LiNeS, ICLR 2025, arXiv:2410.17146",
        url="https://arxiv.org/abs/2410.17146",
        stage="merged_vector",
    ),
    TransformRow(
        name="repair",
        title="REPAIR",
        category="transform",
        params=RepairParams,
        function=".alignment.repaired_merge:repair_merge",
        summary="Rescales hidden units of the merged model to the mean and deviation that they have in the experts.",
        equation=r"z \leftarrow \frac{z-\mu}{\sigma}\,\bar\sigma+\bar\mu,\quad"
        r" \bar\mu=\tfrac1K\textstyle\sum_k\mu_k,\ \bar\sigma=\tfrac1K\sum_k\sigma_k",
        source="Jordan et al., REPAIR: Renormalizing permuted activations for interpolation repair, ICLR 2023, "
        "arXiv:2211.08403",
        url="https://arxiv.org/abs/2211.08403",
        needs=frozenset({"unlabelled"}),
        tokens=True,
        stage="merged_vector",
        stochastic=True,
        quick={"images": 4},
        variants=({"layers": "both"},),
        cost=Cost(reads=1, sweeps=2, images=lambda params: params.images, by_all=True),
    ),
    TransformRow(
        name="random_vector",
        title="Random vector",
        category="transform",
        params=NoParams,
        function=".merging.dropping:random_vector",
        summary="Puts random vectors of the same length in the place of task vectors, tensor by tensor, as a control.",
        equation=r"r_k^l = z_k^l\,\frac{\|\tau_k^l\|_2}{\|z_k^l\|_2},\quad z_k^l \sim \mathcal{N}(0, I)",
        source="Ilharco et al., Editing models with task arithmetic, ICLR 2023, arXiv:2212.04089, §3",
        url="https://arxiv.org/abs/2212.04089",
        stochastic=True,
    ),
)
