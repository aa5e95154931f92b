"""References of alignment on perceptrons: matchings, the barrier, REPAIR, ZipIt, the loss on the path."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from ...alignment.activations import PairedMoments, activation_matching
from ...alignment.assignment import assign, assign_heads, score_of
from ...alignment.observing import perceptron_units
from ...alignment.perceptron import Perceptron, perceptron_symmetry
from ...alignment.repair import goals, repair, unit_statistics
from ...alignment.sinkhorn import path_loss, sinkhorn, softly_permuted
from ...alignment.symmetry import permuted
from ...alignment.weight_matching import objective, weight_matching
from ...alignment.zipit import pair_units, zip_units
from ...analysis.interpolation import barrier
from ..measure import Check, Found
from ..reference import PremergingReference, by_name

DEEP = perceptron_symmetry(4)
CHUNK = 300
LINEAR = [f"layer{number}" for number in range(4)]


def _pair(reference: PremergingReference, precision: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return reference.weights("mlp_a", precision), reference.weights("mlp_b", precision)


def _aligned(reference: PremergingReference, precision: str) -> dict[str, Tensor]:
    one, two = _pair(reference, precision)
    return permuted(two, DEEP, weight_matching(one, two, DEEP))


def known(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare a planted order that has to be found."""
    one, hidden = (reference.weights(file, precision) for file in ("mlp_a", "mlp_a_hidden_permutation"))
    orders, want = weight_matching(one, hidden, DEEP), reference.output(name)
    moved = permuted(hidden, DEEP, orders)
    got = {**orders, **{f"planted_{key[2:]}": torch.argsort(order) for key, order in orders.items()}}
    got |= {f"aligned.{key}": tensor for key, tensor in moved.items()}
    got |= {"objective_before": objective(one, hidden), "objective_after": objective(one, moved)}
    return Found(got, want)


def trained(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare the order of two trained networks, and what other visits reach."""
    one, two = _pair(reference, precision)
    orders, want = weight_matching(one, two, DEEP), reference.output(name)
    reached = want.pop("objective_random_orders")
    got = {
        **orders,
        "objective_before": objective(one, two),
        "objective_after": objective(one, permuted(two, DEEP, orders)),
    }
    if float(got["objective_after"]) < float(reached.min()):
        raise ValueError("other orders of visits reach more")
    return Found(got, want)


def one_hidden(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare a network whose matching is a single assignment."""
    both, shallow = reference.weights("mlp_one_hidden", precision), perceptron_symmetry(2)
    one, two = by_name(both, "a."), by_name(both, "b.")
    orders = weight_matching(one, two, shallow)
    got = {"objective_before": objective(one, two), "objective_after": objective(one, permuted(two, shallow, orders))}
    return Found({**orders, **got}, reference.output(name))


def _path(
    reference: PremergingReference, precision: str, end: dict[str, Tensor], split: str
) -> tuple[list[float], list[float], list[float]]:
    """Positions, losses and shares of right predictions from A to another network."""
    one, _ = _pair(reference, precision)
    data, network = reference.weights("mlp_data", precision), Perceptron.of(one)
    images, labels = data[f"{split}_x"], data[f"{split}_y"]
    places = torch.linspace(0, 1, 25, dtype=torch.float64).tolist()
    losses, accuracies = [], []
    for place in places:
        weights = {key: torch.lerp(tensor, end[key], place) for key, tensor in one.items()}
        logits = functional_call(network, weights, (images,))
        losses.append(float(functional.cross_entropy(logits, labels)))
        accuracies.append(float((logits.argmax(dim=1) == labels).double().mean()))
    return places, losses, accuracies


def barriers(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare losses, accuracies and both kinds of barrier, before and after matching by weights."""
    ends = {"naive": _pair(reference, precision)[1], "aligned": _aligned(reference, precision)}
    got: dict[str, object] = {}
    for kind, end in ends.items():
        for split in ("train", "test"):
            places, losses, accuracies = _path(reference, precision, end, split)
            got["lambdas"] = places
            got[f"loss_{kind}_{split}"], got[f"accuracy_{kind}_{split}"] = losses, accuracies
            got[f"barrier_{kind}_{split}"] = [barrier(places, losses), barrier(places, losses, "mean")]
    return Found(got, reference.output(name))


def activations(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare cross moments, correlations, what the assignments reach and the path to the reference's own order.

    Units that never change have no place of their own, so orders are compared where both partners do.
    """
    one, two = _pair(reference, precision)
    data, want = reference.weights("mlp_data", precision), reference.output(name)
    first, second = Perceptron.of(one), Perceptron.of(two)
    seen = [(perceptron_units(first, part), perceptron_units(second, part)) for part in data["train_x"].split(CHUNK)]
    found = activation_matching(seen, DEEP)
    by_correlation = activation_matching(seen, DEEP, "correlation")
    got: dict[str, object] = {}
    compared: dict[str, Tensor] = {}
    for number in range(3):
        group = f"P_{number}"
        moments = PairedMoments()
        for left, right in seen:
            moments.add(left[group], right[group])
        one_lives, two_lives = (deviation > 0 for deviation in moments.deviations)
        for key, matched in ((group, found), (f"P_pearson_{number}", by_correlation)):
            alive = one_lives & two_lives[want[key]]
            got[key], compared[key] = matched.permutations[group][alive], want[key][alive]
        got |= {f"E_ab_{number}": found.scores[group], f"pearson_{number}": by_correlation.scores[group]}
        got |= {f"score_{number}": score_of(found.scores[group], found.permutations[group])}
        got |= {f"dead_{number}": list(moments.dead)}
    published = {f"P_{number}": want[f"P_{number}"] for number in range(3)}
    places, losses, _ = _path(reference, precision, permuted(two, DEEP, published), "test")
    got |= {"loss_test": losses, "barrier_test": [barrier(places, losses), barrier(places, losses, "mean")]}
    return Found(
        got, {**want, **compared}, note="orders are compared where neither partner is a unit that never changes"
    )


def repaired(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare goals and the repaired network in the middle of the path."""
    one, _ = _pair(reference, precision)
    two, data = _aligned(reference, precision), reference.weights("mlp_data", precision)
    statistics = [unit_statistics(Perceptron.of(end), LINEAR, data["train_x"]) for end in (one, two)]
    wanted = goals(*statistics)
    middle = Perceptron.of({key: torch.lerp(tensor, two[key], 0.5) for key, tensor in one.items()})
    logits = {"midpoint": middle(data["test_x"])}
    repair(middle, wanted, data["train_x"])
    logits["repaired"] = middle(data["test_x"])
    got: dict[str, object] = {"logits_repaired": logits["repaired"][:64]}
    for number, layer in enumerate(LINEAR):
        got |= {f"goal_mean_{number}": wanted[layer].mean, f"goal_var_{number}": wanted[layer].variance}
    labels = data["test_y"]
    got |= {f"loss_test_{kind}": functional.cross_entropy(found, labels) for kind, found in logits.items()}
    right = [(logits[kind].argmax(dim=1) == labels).double().mean().item() for kind in ("midpoint", "repaired")]
    return Found({**got, "accuracy_test": right}, reference.output(name))


def zipped(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare merges of the first hidden layer's units, and the plain pairing."""
    one, two = _pair(reference, precision)
    data, want = reference.weights("mlp_data", precision), reference.output(name)
    first, second = Perceptron.of(one), Perceptron.of(two)
    moments = PairedMoments()
    for part in data["train_x"].split(CHUNK):
        both = torch.cat([perceptron_units(network, part)["P_0"] for network in (first, second)], dim=1)
        moments.add(both, both)
    found = {
        "a0.3_b0.125": zip_units(moments.correlation, 0.3, 0.125),
        "a1_b1": zip_units(moments.correlation, 1.0, 1.0),
        "a0_b0": zip_units(moments.correlation, 0.0, 0.0),
        "permute": pair_units(moments.correlation),
    }
    got = {"covariance": moments.covariance * (moments.count - 1) / moments.count}  # theirs is the biased one
    for kind, matrices in found.items():
        got |= {f"merge_{kind}": matrices.merge, f"unmerge_{kind}": matrices.unmerge}
    return Found(got, want)


def path_losses(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare soft and hard permutations of given scores, and losses on the paths to what they make."""
    one, two = _pair(reference, precision)
    data, raw = reference.weights("mlp_data", precision), reference.weights("deep_align_raw", precision)
    want, stated = reference.output(name), reference.entries[name]["params"]
    soft = {f"P_{n}": sinkhorn(raw[f"raw_{n}"][0], stated["sinkhorn_iterations"], stated["tau"]) for n in range(3)}
    orders = {f"P_{n}": assign(raw[f"raw_{n}"][0]) for n in range(3)}
    hard = {group: functional.one_hot(order).to(soft[group]) for group, order in orders.items()}
    moved = permuted(two, DEEP, orders)
    ends = {"soft": softly_permuted(two, DEEP, soft), "hard": moved, "no_alignment": two}
    network, (images, labels) = Perceptron.of(one), (data[f"train_{part}"][:100] for part in "xy")

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(functional_call(network, weights, (images,)), labels)

    places = torch.linspace(0, 1, stated["n_steps"], dtype=torch.float64)
    got: dict[str, object] = {"lambda": places}
    for kind, end in ends.items():
        got[f"loss_{kind}"] = torch.stack([path_loss(one, end, float(place), loss) for place in places])
    for number in range(3):
        got |= {f"soft_{number}": soft[f"P_{number}"][None], f"hard_{number}": hard[f"P_{number}"][None]}
    got |= {key: moved[key.removeprefix("hard_permuted.")] for key in want if key.startswith("hard_permuted.")}
    return Found(got, want)


def heads(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare heads and channels paired by the correlation of attention outputs."""
    want, width = reference.output(name), reference.entries[name]["params"]["head_width"]
    correlation = want.pop("correlation").to(getattr(torch, precision))
    half = len(correlation) // 2
    scores = correlation[:half, half:]
    (order,), found = assign_heads([scores], width)
    mean = score_of(scores, order) / len(correlation)  # over the units of both; the reference keeps it in float32
    return Found({"permutation": order, "heads": found, "score": mean}, want, "float32")


CHECKS: dict[str, Check] = {
    "weight_matching_known": known,
    "weight_matching_trained": trained,
    "weight_matching_one_hidden": one_hidden,
    "barrier_before_after": barriers,
    "activation_matching": activations,
    "repair_midpoint": repaired,
    "zipit_matching": zipped,
    "deep_align_lmc_loss": path_losses,
    "mha_matching_by_head": heads,
    "mha_matching_in_place": heads,
}
