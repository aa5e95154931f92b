"""Transforms: they change task vectors before the merge, or the merged vector after it."""

from __future__ import annotations

from pydantic import Field

from .row import Params, Preset, TransformRow

LWPTV = "Zhang et al., Layer-wise pruning of task vectors, 2025, arXiv:2506.09093"
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
    )


class LwptvParams(LayerPruningParams):
    """Parameters of LwPTV."""


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
        departure="η = 0 keeps every layer and η = 1 none, where the printed algorithm prunes one and fails.",
        min_experts=2,
    ),
    TransformRow(
        name="absolute_value",
        title="Absolute value",
        category="transform",
        params=LayerPruningParams,
        function=".merging.lwptv:absolute_value",
        summary="Prunes the layers whose task vectors are smallest on average.",
        equation=r"s_k^l = \mathbb{E}\,|\tau_k^l|",
        source=LWPTV + ", Table 3",
        url=LWPTV_URL,
        departure="The paper does not say how layers are chosen; LwPTV's threshold and shared mask are used.",
    ),
)
