"""Merge methods that work on singular vectors of task matrices."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .row import MergeRow, Params


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


ROWS = (
    MergeRow(
        name="tsv_m",
        title="TSV-M",
        category="low_rank",
        params=TsvMergeParams,
        function=".merging.tsv_m:tsv_m",
        summary="Decorrelates the leading singular vectors of all experts before adding them up.",
        equation=r"\tau = U_\perp \Sigma V_\perp^\top,\quad U_\perp = PQ^\top \text{ of } "
        r"[U_1|\dots|U_K] = P D Q^\top",
        source="Gargiulo et al., Task Singular Vectors, CVPR 2025, arXiv:2412.00081",
        url="https://arxiv.org/abs/2412.00081",
        departure="Tensors that are not matrices take the mean task vector, as in the authors' code.",
    ),
)
