"""Merge methods that work on singular vectors of task matrices."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .row import Cost, MergeRow, OnlyWith, Params, Preset
from .survey_entry import SurveyEntry


class SpectralParams(Params):
    """Parameters shared by methods on task matrices."""

    scaling: float = Field(
        1.0, ge=-2, le=5, title="Scaling coefficient α", description="How much of the merged task vector to add."
    )
    matrices: Literal["all", "blocks"] = Field(
        "all",
        title="Matrices",
        description="Treat every 2-D tensor as a matrix (the authors), or only those in transformer blocks.",
    )


class TsvMergeParams(SpectralParams):
    """Parameters of TSV-M."""


class IsoCParams(SpectralParams):
    """Parameters of ISO-C."""


class IsoCtsParams(SpectralParams):
    """Parameters of ISO-CTS."""

    common: float = Field(
        0.8, ge=0, le=1, title="Common fraction", description="Share of directions taken from the sum of all experts."
    )


class SubspaceBoostingParams(SpectralParams):
    """Parameters of Subspace Boosting."""

    scaling: float = Field(
        0.3, ge=-2, le=5, title="Scaling coefficient λ", description="How much of the boosted sum to add."
    )
    share: float = Field(
        0.9,
        gt=0,
        le=1,
        title="Share β",
        description="Singular values after those that make up this share of their sum are raised to the last of them.",
    )


class HoGsvdParams(SubspaceBoostingParams):
    """Parameters of HO-GSVD."""

    scaling: float = Field(
        0.3, ge=-2, le=5, title="Scaling coefficient λ", description="How much of the sum of experts to add."
    )
    ridge: float = Field(
        0.1,
        gt=0,
        le=10,
        title="Ridge π",
        description="Keeps directions that an expert does not use from deciding the shared basis alone.",
    )


class OpcmParams(Params):
    """Parameters of OPCM."""

    alpha: float = Field(
        0.5,
        ge=0,
        le=1,
        title="Projection threshold α",
        description="Share of the spectrum whose directions are protected from later experts.",
    )


class KnotsParams(Params):
    """Parameters of KnOTS."""

    density: Annotated[float, OnlyWith(merge=("ties_mean", "ties_sum"))] = Field(
        0.2, gt=0, le=1, title="Density", description="Share of coordinates that survives the trim."
    )
    merge: Literal["ties_mean", "ties_sum", "sum"] = Field(
        "ties_mean", title="Merge", description="How aligned coordinates are merged."
    )
    scaling: float = Field(
        0.6, ge=-2, le=5, title="Scaling coefficient λ", description="How much of the merged vector to add."
    )
    smallest: float = Field(
        1e-5, ge=0, le=1, title="Smallest singular value", description="Directions below this are left out."
    )
    matrices: Literal["all", "blocks"] = Field(
        "all", title="Matrices", description="Align every 2-D tensor, or only those in transformer blocks."
    )
    merge_others: bool = Field(False, title="Average other tensors", description="Instead of leaving them at the base.")


ISO = "Marczak et al., No task left behind, ICML 2025, arXiv:2502.04959"
ISO_URL = "https://arxiv.org/abs/2502.04959"


class LoraFactorsParams(Params):
    """Parameters of adding LoRA factors."""

    scaling: float = Field(
        0.3, ge=-2, le=5, title="Scaling coefficient λ", description="How much of the factors' task vectors to add."
    )


ROWS = (
    MergeRow(
        name="tsv_m",
        title="TSV-M",
        category="low_rank",
        params=TsvMergeParams,
        proportional=True,
        function=".merging.tsv_m:tsv_m",
        summary="Decorrelates the leading singular vectors of all experts before adding them up.",
        equation=r"\tau = U_\perp \Sigma V_\perp^\top,\quad U_\perp = PQ^\top \text{ of } "
        r"[U_1|\dots|U_K] = P D Q^\top",
        source="Gargiulo et al., Task Singular Vectors, CVPR 2025, arXiv:2412.00081",
        url="https://arxiv.org/abs/2412.00081",
        cost=Cost(decomposes=True),
        survey=SurveyEntry(place=21, method="TSV-M", category="Low-rank subspace", level="Global", tuning_free=True),
    ),
    MergeRow(
        name="iso_c",
        title="ISO-C",
        category="low_rank",
        params=IsoCParams,
        proportional=True,
        function=".merging.isotropic:iso_c",
        summary="Gives all singular directions of the summed task matrices the same strength.",
        equation=r"\tau = \bar\sigma\, U V^\top,\quad U \Sigma V^\top = \sum_k \tau_k",
        source=ISO,
        url=ISO_URL,
        cost=Cost(decomposes=True),
        survey=SurveyEntry(
            place=22, method="ISO-Merging", category="Low-rank subspace", level="Global", tuning_free=True
        ),
    ),
    MergeRow(
        name="iso_cts",
        title="ISO-CTS",
        category="low_rank",
        params=IsoCtsParams,
        proportional=True,
        function=".merging.isotropic:iso_cts",
        summary="Fills a part of the isotropic spectrum with directions that single tasks need.",
        equation=r"\tau = \bar\sigma\, U_\perp V_\perp^\top,\quad U = [U_{\mathrm{common}}|U_1|\dots|U_K]",
        source=ISO,
        url=ISO_URL,
        cost=Cost(decomposes=True),
        survey_with="iso_c",
    ),
    MergeRow(
        name="knots",
        title="KnOTS",
        category="low_rank",
        params=KnotsParams,
        proportional=True,
        function=".merging.knots:knots",
        summary="Merges the experts' coordinates in a basis they share.",
        equation=r"[\tau_1|\dots|\tau_K] = U \Sigma [V_1|\dots|V_K]^\top,\quad "
        r"\tau = U\,\mathrm{TIES}(\Sigma V_1^\top, \dots, \Sigma V_K^\top)",
        source="Stoica et al., Model merging with SVD to tie the knots, ICLR 2025, arXiv:2410.19735",
        url="https://arxiv.org/abs/2410.19735",
        presets=(
            Preset("vit_b_32", "ViT-B/32", {"scaling": 0.6}, "arXiv:2410.19735"),
            Preset("sum", "Sum", {"merge": "sum", "scaling": 0.3}, "arXiv:2410.19735"),
        ),
        cost=Cost(decomposes=True),
        survey=SurveyEntry(place=19, method="KnOTS", category="Low-rank subspace", level="Global", tuning_free=True),
    ),
    MergeRow(
        name="opcm",
        title="OPCM",
        category="low_rank",
        params=OpcmParams,
        function=".merging.opcm:opcm",
        summary="Merges experts one after the other, each projected off the merge so far.",
        equation=r"\tau^{(t)} = \tfrac{1}{\lambda_t}\big(\lambda_{t-1}\tau^{(t-1)} + P_\alpha(\tau_t)\big)",
        source="Tang et al., Merging models on the fly without retraining, 2025, arXiv:2501.09522",
        url="https://arxiv.org/abs/2501.09522",
        order_matters=True,
        cost=Cost(decomposes=True),
        survey=SurveyEntry(place=23, method="OPCM", category="Low-rank subspace", level="Task", tuning_free=True),
    ),
    MergeRow(
        name="subspace_boosting",
        title="Subspace Boosting",
        category="low_rank",
        params=SubspaceBoostingParams,
        proportional=True,
        function=".merging.isotropic:subspace_boosting",
        summary="Raises the small singular values of the summed task matrices to a floor.",
        equation=r"\tau = U \max(\Sigma, \sigma_{k(\beta)}) V^\top",
        source="Skorobogat et al., Subspace-Boosted Model Merging, 2025, arXiv:2506.16506",
        url="https://arxiv.org/abs/2506.16506",
        cost=Cost(decomposes=True),
    ),
    MergeRow(
        name="ho_gsvd",
        title="HO-GSVD",
        category="low_rank",
        params=HoGsvdParams,
        proportional=True,
        function=".merging.ho_gsvd:ho_gsvd",
        summary="Raises what each expert uses little of a basis that all of them share, and adds the experts.",
        equation=r"\tau_k = U_k \Sigma_k V^\top,\quad \sum_k \Sigma_k^2 = I,\quad "
        r"\tau = \lambda \sum_k U_k \max(\Sigma_k, \sigma_{k,j(\beta)})\, V^\top",
        source="Skorobogat et al., Subspace-Boosted Model Merging, 2025, arXiv:2506.16506; Kempf et al., A "
        "higher-order generalized singular value decomposition for rank-deficient matrices, 2021, arXiv:2102.09822",
        url="https://arxiv.org/abs/2102.09822",
        cost=Cost(decomposes=True),
        survey=SurveyEntry(
            place=20,
            method="HO-GSVD",
            category="Low-rank subspace",
            level="Global",
            tuning_free=True,
            remark=(
                "The cited paper compares experts by HO-GSVD and merges by Subspace Boosting, which is a row of its "
                "own here; this row is our reading of a merge in the shared basis."
            ),
        ),
    ),
    MergeRow(
        name="lora_factors",
        title="LoRA factors",
        category="low_rank",
        params=LoraFactorsParams,
        function=".merging.lora_factors:lora_factors",
        summary="Adds the factors of LoRA experts in place of their products, with the cross terms that this brings.",
        equation=r"\Delta W = \Big(\lambda\sum_k B_k\Big)\Big(A_0 + \lambda\sum_k (A_k - A_0)\Big)",
        source="Tang et al., Parameter-efficient multi-task model fusion with partial linearization, ICLR 2024, "
        "arXiv:2310.04742",
        url="https://arxiv.org/abs/2310.04742",
        needs=frozenset({"factors"}),
        cost=Cost(sweeps=2),
    ),
)
