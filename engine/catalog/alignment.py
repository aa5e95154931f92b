"""Ways to align an expert that starts from another base."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .row import AlignmentRow, Params


class MatchingParams(Params):
    """Parameters of every matching."""

    by: Literal["base", "expert"] = Field(
        "base",
        title="Match",
        description="The expert's own base with the zoo's, which carries over to the expert, or the expert itself.",
    )
    groups: Literal["all", "units"] = Field(
        "all",
        title="Reorder",
        description="Hidden units, heads with the channels inside them and the residual stream, or hidden units only.",
    )


class WeightMatchingParams(MatchingParams):
    """Parameters of matching by weights."""

    sweeps: int = Field(100, ge=1, le=10_000, title="Sweeps", description="Visits of every group at most.")


class ActivationMatchingParams(MatchingParams):
    """Parameters of matching by activations."""

    images: int = Field(128, ge=2, le=10_000, title="Images", description="Unlabelled images that both networks see.")
    score: Literal["moment", "correlation"] = Field(
        "correlation", title="Score", description="Pair units by correlation, or by E[a bᵀ] (the authors' program)."
    )


ROWS = (
    AlignmentRow(
        name="weight_matching",
        title="Weight matching",
        category="alignment",
        params=WeightMatchingParams,
        function=".alignment.methods:by_weights",
        summary="Reorders units so that their weights agree best with the base's; needs no images.",
        equation=r"\max_{\pi} \sum_\ell \langle W_A^\ell,\, \pi(W_B)^\ell\rangle",
        source="Ainsworth et al., Git Re-Basin, ICLR 2023, arXiv:2209.04836; Rinaldi et al., ICML 2025, "
        "arXiv:2505.22697",
        url="https://arxiv.org/abs/2209.04836",
    ),
    AlignmentRow(
        name="activation_matching",
        title="Activation matching",
        category="alignment",
        params=ActivationMatchingParams,
        function=".alignment.methods:by_activations",
        summary="Reorders units so that they behave most like the base's on the same images.",
        equation=r"\max_{\pi^\ell} \sum_i \operatorname{corr}\big(a_i^\ell,\, b_{\pi^\ell(i)}^\ell\big)",
        source="Ainsworth et al., Git Re-Basin, ICLR 2023, arXiv:2209.04836; Verma & Elbayad, 2024, arXiv:2403.00986",
        url="https://arxiv.org/abs/2209.04836",
        needs=frozenset({"unlabelled"}),
    ),
)
