"""References of methods on singular vectors."""

from __future__ import annotations

from ...merging.apply import merge
from ...recipe import MethodCall
from ..context import Offline, tensors_of
from ..measure import Check, Found
from ..reference import MergingReference
from .recipe import Recipe


def opcm_with_its_factors(reference: MergingReference, name: str, precision: str) -> Found:
    """Return the merged weights, and the factors λ of every expert that the reference recorded."""
    base, vectors = reference.vectors(precision)
    params = {"alpha": reference.entries[name]["params"]["alpha"]}
    merged = merge(base, vectors, [], MethodCall(method="opcm", params=params), Offline(vectors.experts))
    want, factors = reference.output(name), reference.entries[name].get("values", {}).get("lambda_t")
    got = tensors_of(merged.weights)
    if factors is None:
        return Found(got, want)
    return Found({**got, "factors": merged.info.details["factor"]}, {**want, "factors": factors})


CHECKS: dict[str, Check] = {
    **{f"tsvm_K{count}_a1.0": Recipe("tsv_m", experts=range(count)) for count in (2, 3, 4)},
    "tsvm_K4_exclude_proj_pos": Recipe("tsv_m", {"matrices": "blocks"}),
    **{f"iso_c_K{count}_a1.0": Recipe("iso_c", experts=range(count)) for count in (3, 4)},
    **{f"iso_cts_K{count}_f0.8_a1.0": Recipe("iso_cts", experts=range(count)) for count in (3, 4)},
    **{f"opcm_alpha{alpha}": opcm_with_its_factors for alpha in (0.0, 0.5)},
    "knots_ties_k20_mean_l0.6": Recipe("knots"),
    "knots_ties_k30_sum_l0.3": Recipe("knots", {"density": 0.3, "merge": "ties_sum", "scaling": 0.3}),
    "knots_tv_k100_sum_l0.3": Recipe("knots", {"merge": "sum", "scaling": 0.3}),
}
