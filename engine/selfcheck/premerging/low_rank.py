"""References of low-rank adapters: their outputs and gradients, three ways to add them, and OSRM's subspaces."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...merging.lora_factors import summed_factors
from ...merging.regmean import LayerInputs
from ...training.low_rank import Adapted, LowRank, adapted
from ...training.osrm import null_directions, projected, quietest_directions
from ...types import Adapter
from ..measure import Check, Found
from ..reference import PremergingReference

EXPERTS = range(3)


def layer(data: dict[str, Tensor], scale: float, freeze: bool) -> LowRank:
    """Return the one linear layer with an adapter at its start."""
    linear = nn.Linear(*reversed(data["W"].shape)).to(data["W"])
    linear.load_state_dict({"weight": data["W"], "bias": data["bias"]})
    matrix = Adapted("all", "weight", slice(0, len(data["W"])), tuple(data["W"].shape))
    return LowRank(linear, [matrix], {"all": data["A_init"]}, scale, freeze)


def moved(layer: LowRank, up: Tensor, down: Tensor | None = None) -> LowRank:
    """Return the layer with trained factors."""
    with torch.no_grad():
        layer.up[0].copy_(up)
        if down is not None:
            layer.down[0].copy_(down)
    return layer


def _scale(reference: PremergingReference) -> float:
    stated = reference.entries["l_lora_forward"]["params"]
    return stated["alpha"] / stated["rank"]


def l_lora_forward(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare outputs with trained factors, and gradients of the linearised adapter; A has none."""
    data, scale = reference.weights("lora", precision), _scale(reference)
    got = {}
    for number in EXPERTS:
        up, down = data[f"B{number}"], data[f"A{number}"]
        frozen = moved(layer(data, scale, freeze=True), up)
        output = frozen(data["X"])
        output.square().sum().backward()
        got |= {f"l_lora_{number}": output, f"lora_{number}": moved(layer(data, scale, False), up, down)(data["X"])}
        left = frozen.down[0].grad
        got |= {
            f"gradB_{number}": frozen.up[0].grad,
            f"gradA_{number}": torch.zeros_like(down) if left is None else left,
        }
    return Found(got, reference.output(name))


def lora_merge(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare task addition over B with A frozen, over both factors, and over products."""
    data, scale = reference.weights("lora", precision), _scale(reference)
    scaling = reference.entries[name]["params"]["lambda"]
    trained = [Adapter("W", 0, data[f"A{number}"], data[f"B{number}"], data["A_init"]) for number in EXPERTS]
    down, up = summed_factors(trained, scaling)
    zero = torch.zeros_like(data["W"])
    products = sum(adapted(zero, data[f"A{number}"], data[f"B{number}"], scale) for number in EXPERTS)
    got = {
        "l_lora_merged": moved(layer(data, scale, freeze=True), up)(data["X"]),
        "lora_merged_factors": moved(layer(data, scale, freeze=False), up, down)(data["X"]),
        "lora_merged_products": nn.functional.linear(data["X"], data["W"] + scaling * products, data["bias"]),
    }
    return Found(got, reference.output(name))


def _others(reference: PremergingReference, precision: str) -> list[Tensor]:
    data = reference.weights("osrm", precision)
    return [data[f"H{number}"] for number in range(4)]


def subspace_paper(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare projectors onto the quietest directions of the covariance and of the second moment."""
    inputs = torch.cat(_others(reference, precision))
    rank, centred = reference.entries[name]["params"]["rank"], inputs - inputs.mean(dim=0)
    got = {}
    for kind, moment in (
        ("covariance", centred.T @ centred / (len(inputs) - 1)),
        ("second_moment", inputs.T @ inputs / len(inputs)),
    ):
        rows = quietest_directions(moment, rank)
        got[f"projector_{kind}"] = rows.T @ rows
        got[f"eigenvalues_{kind}"] = torch.linalg.eigvalsh(moment)
        got[f"shift_{kind}"] = (inputs @ rows.T).norm()
    return Found(got, reference.output(name))


def subspace_code(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare what the authors' rule fixes: A is orthonormal and orthogonal to the tasks' means."""
    means = torch.stack([inputs.mean(dim=0) for inputs in _others(reference, precision)])
    rows = null_directions(means, reference.entries[name]["params"]["rank"])
    want = reference.output(name)
    got = {"means": means, "means_times_A": means @ rows.T, "AAt": rows @ rows.T}
    note = "A is any choice in a null space of 8 dimensions; that it is orthonormal and in it is compared"
    return Found(got, {key: want[key] for key in got}, note=note)


def subspace_unique(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare the projector where the null space has as many dimensions as ranks."""
    stated = reference.entries[name]["params"]
    means = torch.stack([inputs.mean(dim=0)[: stated["width"]] for inputs in _others(reference, precision)])
    rows = null_directions(means, stated["rank"])
    return Found({"projector": rows.T @ rows, "means": means}, reference.output(name))


def post_hoc(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare an existing update brought into the subspace of the covariance."""
    inputs = torch.cat(_others(reference, precision))
    centred = inputs - inputs.mean(dim=0)
    rows = quietest_directions(centred.T @ centred, reference.entries[name]["params"]["rank"])
    up, down = projected(reference.weights("osrm", precision)["delta_W"], rows)
    return Found({"delta_W_projected": up @ down, "B_times_A_of_projector": up @ down}, reference.output(name))


def code_features(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare the mean input of a layer; the authors' divides by one batch too few."""
    want = reference.output(name)
    tokens = want.pop("tokens").to(getattr(torch, precision))
    weight = torch.eye(tokens.shape[-1], dtype=tokens.dtype)
    watched = LayerInputs({"layer": weight})
    for batch in tokens:
        with watched:
            nn.functional.linear(batch.reshape(-1, batch.shape[-1]), weight)
    mean = (watched.sums["layer"] / watched.tokens["layer"])[None]
    return Found({"true_mean": mean, "features": mean * len(tokens) / (len(tokens) - 1)}, want)


CHECKS: dict[str, Check] = {
    "l_lora_forward": l_lora_forward,
    "lora_merge_l0.4": lora_merge,
    "osrm_subspace_paper": subspace_paper,
    "osrm_subspace_code": subspace_code,
    "osrm_subspace_code_unique": subspace_unique,
    "osrm_post_hoc_expert": post_hoc,
    "osrm_features_code": code_features,
}
