"""References of transforms, most of them followed by task arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from ...masks import lwptv_masks
from ...merging.lwptv import salience
from ..measure import Check, Found
from ..reference import MergingReference
from .recipe import Recipe
from .sparse import ties

LWPTV = {"lwptv": {"eta": 0.7}}
# The printed algorithm still prunes the least salient layer at η = 0, as the engine does just above 0.
SMALLEST = 1e-6


def after(transform: str, params: Mapping[str, Any], scaling: float = 0.3, **more: Any) -> Recipe:
    """Return task arithmetic behind a transform."""
    return Recipe("task_arithmetic", {"scaling": scaling}, {transform: params}, **more)


def layer_masks(reference: MergingReference, name: str, precision: str) -> Found:
    """Return the salience of every layer, each expert's mask and the shared one."""
    eta = reference.entries[name]["params"]["eta"]
    _, vectors = reference.vectors(precision)
    _, scores = salience(vectors)
    masks, shared = lwptv_masks(scores, eta or SMALLEST)
    return Found({"salience": scores, "task_masks": masks, "shared_mask": shared}, _mask_parts(reference.output(name)))


def _mask_parts(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {part: stored[part] for part in ("salience", "task_masks", "shared_mask")}


def mask_rule(reference: MergingReference, name: str, precision: str) -> Found:
    """Return written-out scores: thresholds, ties and how many layers are kept."""
    values = reference.values(name)
    got: dict[str, Any] = {}
    for key in values:
        scores = values["tied_s" if key.startswith("tied_") else "s"]
        if key.endswith("_mask"):
            eta = float(key.removeprefix("tied_").removeprefix("eta").removesuffix("_mask"))
            got[key] = lwptv_masks(np.array([scores]), eta or SMALLEST)[0][0]
    kept = values.get("kept_for_L_eta0.7", {})
    counts = {f"kept of {n}": lwptv_masks(np.arange(1.0, int(n) + 1)[None], 0.7)[0].sum() for n in kept}
    want = {key: values[key] for key in got} | {f"kept of {n}": count for n, count in kept.items()}
    return Found(got | counts, want)


def carried_out(recipe: Recipe, reference: MergingReference, name: str, precision: str) -> Found:
    """Carry out a published draw on each expert alone: left are the entries that its masks keep."""
    base, vectors = reference.vectors(precision)
    masks, got, want = reference.output(name), {}, {}
    for number, expert in enumerate(vectors.experts):
        alone = replace(recipe, experts=[number], draws=name).merged(reference, precision)
        for layer in vectors.names:
            place = f"{expert.replace('expert', 'task')}/{layer}"
            got[place] = alone[layer] != base.tensor(layer).to(vectors.dtype)
            want[place] = masks.get(place, masks.get(layer)).bool() & (vectors.vector(layer, expert) != 0)
    return Found(got, want)


DARE = (0.5, 0.9)
CHECKS: dict[str, Check] = {
    **{f"dare_p{rate}_masks": partial(carried_out, after("dare", {"rescale": False}, 1.0)) for rate in DARE},
    **{f"dare_p{rate}_ta_l0.3": after("dare", {"drop_rate": rate}, draws=f"dare_p{rate}_masks") for rate in DARE},
    **{
        f"dare_p{rate}_ties_k20_sum_l0.3": Recipe(
            "ties", ties(0.2, "sum", 0.3), {"dare": {"drop_rate": rate}}, draws=f"dare_p{rate}_masks"
        )
        for rate in DARE
    },
    **{
        f"della_{who}_d0.5_e0.15_masks": partial(
            carried_out, Recipe("della", {"rescale": False, "elect": False, "scaling": 1.0})
        )
        for who in ("official", "mergekit")
    },
    "random_mask_param_keep0.3_mask": partial(carried_out, after("random_mask", {}, 1.0)),
    "random_mask_param_keep0.3_ta_l0.3": after("random_mask", {"keep": 0.3}, draws="random_mask_param_keep0.3_mask"),
    **{f"wise_ft_e0_a{alpha}": after("wise_ft", {"alpha": alpha}, 1.0, experts=[0]) for alpha in (0.3, 0.5)},
    **{
        f"lines_sum_a{alpha}_b{beta}": after("lines", {"alpha_from_norms": False, "alpha": alpha, "beta": beta}, 1.0)
        for alpha, beta in ((0.25, 0.7), (0.3, 0.7), (0.25, 0.0))
    },
    "lines_single_e0_a0.4_b0.6": after(
        "lines", {"alpha_from_norms": False, "alpha": 0.4, "beta": 0.6}, 1.0, experts=[0]
    ),
    **{f"lwptv_eta{eta}_masks": layer_masks for eta in (0.0, 0.5, 0.7, 0.9)},
    "lwptv_edge_cases": mask_rule,
    **{f"lwptv_ta_eta{eta}_l0.3": after("lwptv", {"eta": eta or SMALLEST}) for eta in (0.0, 0.5, 0.7, 0.9)},
    "lwptv_ta_noOR_eta0.7_l0.3": after("lwptv", {"eta": 0.7, "shared": False}),
    "lwptv_ties_k20_sum_eta0.7_l0.3": Recipe("ties", ties(0.2, "sum", 0.3), LWPTV),
    "lwptv_ties_k20_mean_eta0.7_l1.0": Recipe("ties", ties(0.2, "mean", 1.0), LWPTV),
    "lwptv_pcb_r0.05_l1.2_eta0.7": Recipe("pcb", {}, LWPTV),
    "toyfull_lwptv_ta_eta0.7_l0.3": Recipe("task_arithmetic", {}, LWPTV, kind="toyfull"),
    "abs_value_layer_ta_eta0.7_l0.3": Recipe("task_arithmetic", {}, {"absolute_value": {"eta": 0.7}}),
    **{
        f"{short}_{word}_eta0.7_l0.3": Recipe("task_arithmetic", {}, {name: {"eta": 0.7, "shared": shared}})
        for short, name in (("pwptv", "pwptv"), ("mwp", "magnitude"))
        for word, shared in (("or", True), ("noor", False))
    },
}
