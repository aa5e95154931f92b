"""References of methods that solve or learn for the merged weights."""

from __future__ import annotations

from functools import partial

import torch

from ...catalog.optimisation import DopParams
from ...catalog.transforms import LwptvParams
from ...merging.adamerging import combine, entropy
from ...merging.assemble import add_to_base
from ...merging.concrete import relaxed, rescaled, under
from ...merging.dop import merge_pair
from ...merging.lwptv import lwptv, scale_learned
from ...merging.ties import elected
from ..context import Offline, tensors_of
from ..measure import Check, Found
from ..reference import MergingReference, by_name
from .recipe import Recipe


def at_given_coefficients(
    reference: MergingReference,
    name: str,
    precision: str,
    layer_wise: bool,
    clamp: bool = True,
    pruned: bool = False,
    plus_plus: bool = False,
) -> Found:
    """Return AdaMerging's model at stored coefficients, behind LwPTV or with ++ where the reference says so."""
    base, vectors = reference.vectors(precision)
    context, params = Offline(vectors.experts), LwptvParams(eta=0.7)
    stored, order = reference.inputs("lambdas"), reference.order
    rows = stored["layer_wise"] if layer_wise else stored["task_wise"].expand(len(order), -1)
    coefficients = dict(zip(order, rows.clamp(0, 1) if clamp else rows, strict=True))
    changed = lwptv(base, vectors, params, context) if pruned else vectors
    changed = elected(changed, 0.2, context) if plus_plus else changed
    merged = add_to_base(base, changed, lambda layer: combine(coefficients[layer], changed.stack(layer)))
    if pruned and layer_wise:
        merged = scale_learned(base, changed, merged, params, context)
    return Found(tensors_of(merged.weights), reference.output(name))


def entropy_and_gradient(reference: MergingReference, name: str, precision: str) -> Found:
    """Return the mean entropy of stored predictions, and its gradient."""
    want = reference.output(name)
    logits = want["logits"].to(getattr(torch, precision)).requires_grad_()
    loss = entropy(logits)
    loss.backward()
    return Found(
        {"entropy": loss, "gradient": logits.grad},
        {"entropy": want["entropy"].mean(), "gradient": want["grad_of_mean"]},
    )


def dop_pair(reference: MergingReference, name: str, precision: str) -> Found:
    """Return one matrix between two experts, with a fixed and with an adaptive balance."""
    facts = reference.entries[name]["params"]
    base, vectors = reference.vectors(precision, [0, 1])
    layer, got = facts["tensor"], {}
    for key, balance in (("mgda0", "fixed"), ("mgda1", "adaptive")):
        params = DopParams(
            balance=balance,
            stability=facts["alpha"],
            smoothing=facts["ema_beta"],
            energy=facts["svd_epsilon"],
            steps=facts["num_steps"],
            learning_rate=facts["lr"],
        )
        got[key] = merge_pair(*vectors.stack(layer), params) + base.tensor(layer)
    return Found(got, reference.output(name))


def concrete_mask(reference: MergingReference, name: str, precision: str) -> Found:
    """Return the relaxed masks of stored logits, from the noise that the stated seed gives."""
    stored, params = reference.output(name), reference.entries[name]["params"]
    generator = torch.Generator().manual_seed(params["seed"])
    got = {}
    for layer in reference.order:
        logits = stored[f"logits/{layer}"]
        noise = torch.rand(logits.shape, dtype=logits.dtype, generator=generator)
        dtype = getattr(torch, precision)
        got[f"mask/{layer}"] = relaxed(logits.to(dtype), noise.to(dtype), params["temperature"])
    return Found(got, {key: mask for key, mask in stored.items() if key in got})


def concrete_model(reference: MergingReference, name: str, precision: str) -> Found:
    """Return task arithmetic under stored masks that are shared by the experts."""
    base, vectors = reference.vectors(precision)
    masks = by_name(reference.output("concrete_masks"), "mask/")
    masked = under(vectors, lambda layer: rescaled(masks[layer].to(vectors.dtype)))
    rows = torch.full((len(vectors.experts),), reference.entries[name]["params"]["lambda"], dtype=torch.float64)
    merged = add_to_base(base, masked, lambda layer: combine(rows, masked.stack(layer)))
    return Found(tensors_of(merged.weights), reference.output(name))


CHECKS: dict[str, Check] = {
    "concrete_masks": concrete_mask,
    "concrete_ta_l0.3": concrete_model,
    **{
        f"adamerging_{grain}_clamp{int(clamp)}": partial(at_given_coefficients, layer_wise=grain == "lw", clamp=clamp)
        for grain in ("tw", "lw")
        for clamp in (False, True)
    },
    "adamergingpp_lw_clamp1": partial(at_given_coefficients, layer_wise=True, plus_plus=True),
    "lwptv_tw_adamerging_eta0.7": partial(at_given_coefficients, layer_wise=False, pruned=True),
    "lwptv_lw_adamerging_eta0.7": partial(at_given_coefficients, layer_wise=True, pruned=True),
    "lwptv_lw_adamergingpp_eta0.7": partial(at_given_coefficients, layer_wise=True, pruned=True, plus_plus=True),
    "entropy_loss": entropy_and_gradient,
    **{
        f"regmean_a{factor}": Recipe("regmean", {"off_diagonal": factor}, measured="gram_matrices")
        for factor in (0.9, 0.95, 1.0)
    },
    **{
        f"fisher_norm{int(normalise)}": Recipe("fisher", {"normalise": normalise}, measured="fisher_diagonals")
        for normalise in (False, True)
    },
    **{
        f"closed_form_eq20_w{omega}": Recipe("closed_form", {"omega": float(omega), "relative": False})
        for omega in ("1e-06", "0.0001", "1")
    },
    **{f"wudi_official_it{steps}": Recipe("wudi", {"steps": steps}) for steps in (50, 300)},
    "wudi_fusionbench_it300": Recipe("wudi", {"matrices": "all"}),
    "dop_pair_c_fc0": dop_pair,
    "doge_ta_sub6_K30_l0.07": Recipe("doge"),
}
