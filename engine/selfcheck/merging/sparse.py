"""References of methods that keep a sparse part of every task vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...catalog.sparse import ModelTailorParams, PcbParams
from ...merging.apply import merge
from ...merging.assemble import flat
from ...merging.consensus import tall_masks
from ...merging.localize import largest_entries
from ...merging.model_tailor import tailor
from ...merging.pcb import Competition
from ...merging.row_pruning import keep_probabilities
from ...merging.ties import elected, trim_limits, trimmed
from ...recipe import MethodCall
from ...weights import LazyTaskVectors, Memory
from ..context import Offline
from ..measure import Check, Found, stacked_by_task
from ..reference import MergingReference
from .recipe import Recipe


def ties(density: float, how: str, scaling: float, **more: Any) -> dict[str, Any]:
    """Return the parameters of TIES."""
    return {"density": density, "merge": how, "scaling": scaling, **more}


def ties_where_magnitudes_tie(reference: MergingReference, name: str, precision: str) -> Found:
    """Return written-out vectors whose magnitudes and signs tie: trimmed and merged."""
    values, rows = reference.values(name), torch.tensor(reference.entries[name]["params"]["input"])
    base = Memory({"w": torch.zeros(rows.shape[1])})
    files = {f"e{k}": Memory({"w": row}) for k, row in enumerate(rows)}
    vectors = LazyTaskVectors(base, files, dtype=getattr(torch, precision))
    context, got = Offline(vectors.experts), {}
    for key in values:
        percent, _, what = key.partition("_")
        density = float(percent.removeprefix("k") or 0) / 100 if percent[1:].isdigit() else 0
        if density and what in ("sum", "mean", "max"):
            call = MethodCall(method="ties", params=ties(density, what, 1.0))
            got[key] = merge(base, vectors, [], call, context).weights.tensor("w")
        elif density and what == "trimmed":
            got[key] = trimmed(vectors.stack("w"), trim_limits(vectors, density, "model", context)("w"))
    return Found(got, {key: values[key] for key in got})


def elected_entries(reference: MergingReference, name: str, precision: str) -> Found:
    """Return the trimmed task vectors without what disagrees with the elected sign."""
    _, vectors = reference.vectors(precision)
    found = elected(vectors, 0.2, Offline(vectors.experts))
    return Found({layer: found.stack(layer) for layer in found.names}, stacked_by_task(reference.output(name)))


def breadcrumbs_without_the_fault(reference: MergingReference, name: str, precision: str) -> Found:
    """Compare tensors but those that the program's empty slice zeroes, where int(γ n) is 0."""
    params = reference.entries[name]["params"]
    gamma = params["gamma"]
    recipe = Recipe(
        "breadcrumbs", {"beta": params["density"], "gamma": gamma, "scaling": params["lambda"], "scope": "tensor"}
    )
    found = recipe(reference, name, precision)
    large = [layer for layer in found.want if int(gamma * found.want[layer].numel())]
    note = f"{len(found.want) - len(large)} small tensors, which the program zeroes by mistake, are not compared"
    return Found({n: found.got[n] for n in large}, {n: found.want[n] for n in large}, note=note)


def della_probabilities(reference: MergingReference, name: str, precision: str) -> Found:
    """Return the probabilities with which entries are kept."""
    _, vectors = reference.vectors(precision)
    params = reference.entries[name]["params"]
    got = {
        f"{expert.replace('expert', 'task')}/{layer}": keep_probabilities(
            vectors.vector(layer, expert), params["density"], params["epsilon"]
        )
        for expert in vectors.experts
        for layer in vectors.names
    }
    return Found(got, reference.output(name))


def tall_by_task(reference: MergingReference, name: str, precision: str) -> Found:
    """Return the entries that serve each task."""
    _, vectors = reference.vectors(precision)
    strictness = float(name.removeprefix("tall_masks_lam"))
    stacks = {layer: vectors.stack(layer) for layer in vectors.names}
    got = {layer: tall_masks(stack, stack.sum(dim=0), strictness) for layer, stack in stacks.items()}
    return Found(got, stacked_by_task(reference.output(name)))


def pcb_scores(reference: MergingReference, name: str, precision: str) -> Found:
    """Return the scores of the competition, normalised."""
    _, vectors = reference.vectors(precision)
    competition = Competition(vectors, PcbParams(density=0.05), Offline(vectors.experts))

    def scores(layer: str) -> Tensor:
        stack = vectors.stack(layer)
        return competition.scores(flat(stack))[0].view_as(stack)

    return Found({layer: scores(layer) for layer in vectors.names}, stacked_by_task(reference.output(name)))


def localized_masks(reference: MergingReference, name: str, precision: str) -> Found:
    """Return the entries that Localize-and-Stitch selects without data."""
    _, vectors = reference.vectors(precision)
    density = reference.entries[name]["params"]["sparsity"]
    masks = largest_entries(vectors, density, Offline(vectors.experts))
    return Found({layer: masks(layer) for layer in vectors.names}, stacked_by_task(reference.output(name)))


def tailored_layer(reference: MergingReference, name: str, precision: str) -> Found:
    """Return one linear layer of one expert, from stored inner products. The program computes in float32."""
    facts = reference.entries[name]["params"]
    layer, dtype = facts["tensor"], getattr(torch, precision)
    params = ModelTailorParams(sparsity=facts["sparsity"], damping=facts["percdamp"], block=facts["blocksize"])
    gram = reference.inputs("gram_matrices")[f"task0/{layer}"]
    models = (reference.model(reference.experts[0]), reference.model("pretrained"))
    weight, before = (model.tensor(layer).to(dtype) for model in models)
    return Found({layer: tailor(weight, before, gram.to(dtype), params)}, reference.output(name))


DELLA = {"official": True, "mergekit": False}
CHECKS: dict[str, Check] = {
    **{
        f"ties_k{percent}_{how}_l{scaling}": Recipe("ties", ties(percent / 100, how, scaling))
        for percent in (20, 50, 80)
        for how, scaling in (("sum", 0.3), ("mean", 1.0), ("max", 0.3))
    },
    "ties_k20_selected_entries": elected_entries,
    "ties_edge_cases": ties_where_magnitudes_tie,
    "toyfull_ties_k20_sum_l0.3": Recipe("ties", ties(0.2, "sum", 0.3), kind="toyfull"),
    "ties_mergekit_d0.2_norm_l1.0": Recipe("ties", ties(0.2, "mean", 1.0, scope="tensor")),
    **{
        f"breadcrumbs_rowwise_b{beta}_g0.1_a0.3": Recipe("breadcrumbs", {"beta": beta, "gamma": 0.1, "scaling": 0.3})
        for beta in (0.15, 0.5)
    },
    "breadcrumbs_mergekit_d0.85_g0.1_l0.3": Recipe(
        "breadcrumbs", {"beta": 0.85, "gamma": 0.1, "scaling": 0.3, "scope": "tensor"}
    ),
    "breadcrumbs_mergekit_d0.3_g0.05_l0.3": breadcrumbs_without_the_fault,
    **{f"della_{who}_d0.5_e0.15_probs": della_probabilities for who in DELLA},
    # The reference's probabilities are float32, so its quotients are known no better.
    **{
        f"della_{who}_d0.5_e0.15_ta_l0.3": Recipe(
            "della",
            {"rescale": rescale, "elect": False, "scaling": 0.3},
            draws=f"della_{who}_d0.5_e0.15_masks",
            at_best="float32",
        )
        for who, rescale in DELLA.items()
    },
    "della_official_elect_mean_l1.1": Recipe("della", draws="della_official_d0.5_e0.15_masks", at_best="float32"),
    **{
        f"pcb_r{r}_l{scaling}": Recipe("pcb", {"density": r, "scaling": scaling})
        for r, scaling in ((0.05, 1.0), (0.05, 1.2), (0.1, 1.2), (0.2, 1.2))
    },
    "pcb_r0.05_scale": pcb_scores,
    "pcb_vision_script_r0.05_l1.2": Recipe(
        "pcb", {"density": 0.05, "scaling": 1.2, "clip": 0.01, "balance": "normalised"}
    ),
    **{f"tall_masks_lam{strictness}": tall_by_task for strictness in (0.2, 0.4, 0.6, 1.0)},
    **{f"consensus_ta_lam0.4_k{k}_l0.3": Recipe("consensus", {"agreeing": k}) for k in (1, 2, 3)},
    **{f"localize_stitch_dataless_s{s}": Recipe("localize_and_stitch", {"density": s}) for s in (0.1, 0.3)},
    "model_tailor_c_fc0_s0.9": tailored_layer,
    **{f"localize_stitch_dataless_s{s}_masks": localized_masks for s in (0.1, 0.3)},
}
