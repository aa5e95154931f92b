"""References of methods that weight or turn whole tensors."""

from __future__ import annotations

from ...merging.assemble import add_to_base
from ...merging.spherical import mean_direction
from ..context import tensors_of
from ..measure import Check, Found
from ..reference import MergingReference
from .recipe import Recipe

TWO = (0, 1)


def multislerp_of_weighted_experts(reference: MergingReference, name: str, precision: str) -> Found:
    """Return the mean direction with unequal weights, which no recipe of ours offers."""
    base, vectors = reference.vectors(precision)
    weights = reference.entries[name]["params"]["weights"]
    merged = add_to_base(base, vectors, lambda layer: mean_direction(vectors.stack(layer), weights))
    return Found(tensors_of(merged.weights), reference.output(name))


CHECKS: dict[str, Check] = {
    **{f"slerp_weights_t{t}": Recipe("slerp", {"t": t, "on": "weights"}, experts=TWO) for t in (0.3, 0.5)},
    **{f"slerp_taskvec_t{t}": Recipe("slerp", {"t": t}, experts=TWO) for t in (0.3, 0.5)},
    "slerp_taskvec_global_t0.5": Recipe("slerp", {"scope": "model"}, experts=TWO),
    "multislerp_base_uniform": Recipe("multislerp"),
    "multislerp_base_w4321": multislerp_of_weighted_experts,
    "multislerp_nobase_uniform": Recipe("multislerp", {"on": "weights"}),
    **{f"karcher_weights_it{n}": Recipe("karcher", {"on": "weights", "max_iterations": n}) for n in (10, 100)},
    "karcher_taskvec_it100": Recipe("karcher", {"max_iterations": 100}),
    "metagpt": Recipe("metagpt"),
    "model_stock_K2": Recipe("model_stock", {"clamp": False}, experts=TWO, at_best="float32"),
    "model_stock_K4_fusionbench": Recipe("model_stock", {"clamp": False}, at_best="float32"),
    "model_stock_K4_mergekit_filter0": Recipe("model_stock", {"clamp": False, "average": "cosines"}),
    "model_stock_K4_mergekit_filter1": Recipe(
        "model_stock", {"clamp": False, "average": "cosines", "scope": "row"}, some=True
    ),
}
