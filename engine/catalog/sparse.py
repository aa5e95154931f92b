"""Merge methods that keep a sparse part of every task vector."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .row import MergeRow, Params, Preset


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
        ge=0,
        le=10_000_000_000,
        title="Frozen parameters counted",
        description="Untrained parameters outside the image encoder that count in the density; 25,599,489 reproduces "
        "numbers published with complete ViT-B/32 checkpoints.",
    )


ROWS = (
    MergeRow(
        name="ties",
        title="TIES",
        category="sparse",
        params=TiesParams,
        function=".merging.ties:ties",
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
        departure="The paper takes the mean of agreeing entries with λ around 1, published vision numbers their sum "
        "with λ = 0.3; both are presets.",
    ),
)
