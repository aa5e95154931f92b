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


class SinkhornParams(MatchingParams):
    """Parameters of learned matching."""

    steps: int = Field(200, ge=1, le=100_000, title="Steps", description="Of Adam; each draws a place on the path.")
    learning_rate: float = Field(0.05, gt=0, le=10, title="Learning rate", description="Of Adam.")
    images: int = Field(64, ge=2, le=10_000, title="Images", description="Labelled images on which the loss is taken.")
    seed: int = Field(0, ge=0, lt=2**32, title="Seed", description="Of the places on the path.")


class RandomOrderParams(MatchingParams):
    """Parameters of a random order."""

    seed: int = Field(0, ge=0, lt=2**32, title="Seed", description="Of the order.")


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
    AlignmentRow(
        name="sinkhorn",
        title="Learned matching",
        category="alignment",
        params=SinkhornParams,
        function=".alignment.methods:by_path_loss",
        summary="Learns the order of units for which the loss on the path between both networks is smallest.",
        equation=r"\min_{\pi} \mathbb{E}_{\lambda\sim U(0,1)}\,"
        r" L\big(\lambda\theta_A + (1-\lambda)\,\pi(\theta_B)\big)",
        source="Navon et al., DEEP-ALIGN, ICML 2024, arXiv:2310.13397; Peña et al., Re-basin via implicit Sinkhorn "
        "differentiation, CVPR 2023, arXiv:2212.12042",
        url="https://arxiv.org/abs/2310.13397",
        needs=frozenset({"validation", "heads"}),
        quick={"steps": 20, "images": 8},
    ),
    AlignmentRow(
        name="random_order",
        title="Random order",
        category="alignment",
        params=RandomOrderParams,
        function=".alignment.methods:at_random",
        summary="A control: units in an order drawn from all that keep the function.",
        equation=r"\pi \sim U(\Pi)",
        source="A control for Git Re-Basin (Ainsworth et al., ICLR 2023, arXiv:2209.04836): any other order.",
        url="https://arxiv.org/abs/2209.04836",
    ),
    AlignmentRow(
        name="as_it_is",
        title="As it is",
        category="alignment",
        params=MatchingParams,
        function=".alignment.methods:as_it_is",
        summary="A control: units stay where they are, so that an expert of another base is merged without a matching.",
        equation=r"\pi = \mathrm{id}",
        source="A control for Git Re-Basin (Ainsworth et al., ICLR 2023, arXiv:2209.04836): no matching.",
        url="https://arxiv.org/abs/2209.04836",
    ),
)
