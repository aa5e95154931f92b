"""References of weight disentanglement: three pairs of experts, non-linear and linearised."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import functional_call

from ...analysis.disentanglement import Features, disagreement, disentanglement_error, linear_features
from ...features.linearised import tangent
from ..measure import Check, Found
from ..reference import PremergingReference
from .small import own_names, small_encoder

PAIRS = ((0, 1), (0, 2), (1, 2))


def grid(reference: PremergingReference, name: str, precision: str) -> Found:
    """Compare both summands of ξ and their sum."""
    alphas = reference.entries[name]["params"]["alphas"]
    data = reference.weights("toyvit_data", precision)
    got = {"alphas": alphas}
    for first, second in PAIRS:
        make = _linear if name.endswith("_linear") else _ordinary
        features = make(reference, precision, (first, second))
        heads = [data[f"head{task}"] for task in (first, second)]
        parts = disentanglement_error(alphas, features, disagreement(heads))
        got |= {f"parts_{first}{second}": parts, f"xi_{first}{second}": parts.sum(dim=2)}
    return Found(got, reference.output(name))


def _vectors(
    reference: PremergingReference, precision: str, pair: tuple[int, int], start: Mapping[str, Tensor]
) -> list[dict[str, Tensor]]:
    models = [own_names(reference.weights(f"toyvit_expert{number}", precision)) for number in pair]
    return [{key: tensors[key] - start[key] for key in start} for tensors in models]


@torch.no_grad()
def _linear(reference: PremergingReference, precision: str, pair: tuple[int, int]) -> Features:
    encoder, data = small_encoder(reference, "base", precision), reference.weights("toyvit_data", precision)
    start = dict(encoder.named_parameters())
    vectors = _vectors(reference, precision, pair, start)
    found = [[tangent(encoder, start, vector, data[f"images{task}"]) for vector in vectors] for task in pair]
    return linear_features([row[0][0] for row in found], [[change for _, change in row] for row in found])


def _ordinary(reference: PremergingReference, precision: str, pair: tuple[int, int]) -> Features:
    encoder, data = small_encoder(reference, "base", precision), reference.weights("toyvit_data", precision)
    start = dict(encoder.named_parameters())
    one, two = _vectors(reference, precision, pair, start)

    @torch.no_grad()
    def features(task: int, first: float, second: float) -> Tensor:
        weights = {key: start[key] + first * one[key] + second * two[key] for key in start}
        return functional_call(encoder, weights, (data[f"images{pair[task]}"],))

    return features


CHECKS: dict[str, Check] = {"disentanglement_nonlinear": grid, "disentanglement_linear": grid}
