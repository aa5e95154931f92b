"""Merge methods whose weights depend on the task or on the input."""

from __future__ import annotations

from .row import MergeRow, NoParams
from .sparse import TallParams

ROWS = (
    MergeRow(
        name="emr",
        title="EMR-Merging",
        category="routing",
        params=NoParams,
        function=".merging.emr:emr",
        summary="One unified task vector, with a one-bit mask and one rescaler for each task.",
        equation=r"\theta_k = \theta_0 + \lambda_k\, M_k \circ \tau_{\mathrm{uni}},\quad "
        r"M_k = \mathbb{1}[\tau_k \circ \tau_{\mathrm{uni}} > 0]",
        source="Huang et al., EMR-Merging, NeurIPS 2024, arXiv:2405.17461",
        url="https://arxiv.org/abs/2405.17461",
        yields="per_task",
        departure="The rescaler is a ratio of sums of tensor means, as in the authors' code, not of global sums.",
    ),
    MergeRow(
        name="tall",
        title="TALL-masks",
        category="routing",
        params=TallParams,
        function=".merging.consensus:tall",
        summary="The summed task vectors, with a one-bit mask of what serves each task.",
        equation=r"\theta_t = \theta_0 + m_t \circ \textstyle\sum_j \tau_j,\quad "
        r"m_t = \mathbb{1}[\,|\tau_t| > \lambda\,|\sum_j \tau_j - \tau_t|\,]",
        source="Wang et al., Localizing task information, ICML 2024, arXiv:2405.07813",
        url="https://arxiv.org/abs/2405.07813",
        yields="per_task",
        departure="The authors choose λ for every task by validation accuracy; here it is one parameter.",
    ),
)
