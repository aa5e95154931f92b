"""Matchings of transformers, as the catalogue names them, and the check that each has to pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from ..catalog.alignment import (
    ActivationMatchingParams,
    MatchingParams,
    RandomOrderParams,
    SinkhornParams,
    WeightMatchingParams,
)
from ..errors import AlignmentError
from ..layouts import OPEN_CLIP, Layout
from ..merging.adamerging import predict
from ..types import Progress, Tensors
from ..zoo.encoders.heads import ZeroShotHead
from .activations import activation_matching
from .observing import transformer_units
from .sinkhorn import sinkhorn_matching
from .symmetry import Permutations, Symmetry, identity, permuted, random_permutations
from .transformer import folded, transformer_symmetry, unfolded
from .weight_matching import weight_matching

BATCH = 16
READER = "reader"  # what a head reads features with, among the tensors of a network
SAME = 1e-10


@dataclass(frozen=True)
class Labelled:
    """Images with labels and the head that they are scored with."""

    images: Tensor  # prepared, (n, …)
    labels: Tensor  # (n,)
    head: ZeroShotHead


@dataclass(frozen=True)
class Images:
    """Samples that a matching may look at; each function gives at most so many."""

    unlabelled: Callable[[int], Tensor]
    labelled: Callable[[int], Labelled]
    layout: Layout = OPEN_CLIP  # of the encoders that they are for
    order: Tensor | None = None  # in which the other network gives its features, where it is not the head's
    progress: Progress = lambda fraction, message="": None  # told how far the matching is; may end it

    def __call__(self, count: int) -> Tensor:
        """Return unlabelled samples, prepared (n, …)."""
        return self.unlabelled(count)


def symmetry_for(config: Mapping[str, Any], params: MatchingParams) -> Symmetry:
    """Return the groups that are reordered: all of the architecture's, or hidden units only.

    Raises:
        AlignmentError: the architecture is no plain transformer.
    """
    whole = transformer_symmetry(config)
    if params.groups == "all":
        return whole
    return Symmetry({group: axes for group, axes in whole.groups.items() if group.startswith("units_")})


def by_weights(
    fixed: nn.Module, other: nn.Module, symmetry: Symmetry, params: WeightMatchingParams, images: Images
) -> dict[str, Tensor]:
    """Order the units of a transformer like another's by their weights.

    Source: Ainsworth et al., ICLR 2023, arXiv:2209.04836, Algorithm 1; Rinaldi et al., ICML 2025, arXiv:2505.22697.

    Departure: groups are visited in a fixed order. Heads and the channels inside them are ordered at once and exactly,
        where the latter authors pair heads by singular values and give every block a residual order of its own.
    """
    one, two = (unfolded(dict(encoder.named_parameters())) for encoder in (fixed, other))

    def told(sweeps: float) -> None:  # a sweep gains less than the one before, and how many it takes is not known
        images.progress(1 - 0.5**sweeps, f"sweep {int(sweeps) + 1}")

    with torch.no_grad():
        return weight_matching(one, two, symmetry, params.sweeps, progress=told)


def by_activations(
    fixed: nn.Module, other: nn.Module, symmetry: Symmetry, params: ActivationMatchingParams, images: Images
) -> dict[str, Tensor]:
    """Order the units of a transformer like another's by what they do on the same images.

    Source: Ainsworth et al., ICLR 2023, arXiv:2209.04836, §3.1; Verma & Elbayad, 2024, arXiv:2403.00986.

    Departure: correlations are signed, and the default in place of E[a bᵀ]. Queries and keys share one order.
    """
    parts = images(params.images).split(BATCH)

    def units(place: int, part: Tensor) -> tuple[Tensors, ...]:
        images.progress(place / len(parts), f"batch {place + 1} of {len(parts)}")
        return tuple(transformer_units(encoder, part, images.layout) for encoder in (fixed, other))

    seen = (units(place, part) for place, part in enumerate(parts))
    return activation_matching(seen, symmetry, params.score).permutations


def by_path_loss(
    fixed: nn.Module, other: nn.Module, symmetry: Symmetry, params: SinkhornParams, images: Images
) -> dict[str, Tensor]:
    """Learn the order of units for which the loss on the path to another transformer is smallest.

    Source: the pairwise core of Navon et al., ICML 2024, arXiv:2310.13397, with the updates of Peña et al., CVPR 2023,
        arXiv:2212.12042.

    Departure: no network predicts the order, which would need thousands of trained networks. Heads and the channels
        inside them keep their order; the labels are those of the expert's task, on one batch. In float32. Where the
        order of the features is learned, the head of each network is part of it.
    """
    taken = images.labelled(params.images)
    samples, head = cast(taken.images, torch.float32), taken.head.float()
    template = {name: parameter.detach().float() for name, parameter in fixed.named_parameters()}
    one, two = (
        {name: tensor.float() for name, tensor in unfolded(dict(encoder.named_parameters())).items()}
        for encoder in (fixed, other)
    )
    one, two = ({name: tensor.detach() for name, tensor in part.items()} for part in (one, two))
    if symmetry.features:
        one[READER], two[READER] = head.reader, head.reordered(images.order).reader

    def loss(tensors: Tensors) -> Tensor:
        features = functional_call(fixed, folded(dict(tensors), template), (samples,))
        reading = head.read_by(tensors[READER]) if symmetry.features else head
        return functional.cross_entropy(predict(features, reading), taken.labels)

    within = {group for heads in symmetry.heads for group in heads.groups}
    free = Symmetry(
        {
            group: (*axes, (READER, 1)) if group == symmetry.features else axes
            for group, axes in symmetry.groups.items()
            if group not in within
        }
    )
    return sinkhorn_matching(
        one, two, free, loss, params.steps, params.learning_rate, params.seed, progress=images.progress
    )


def at_random(
    fixed: nn.Module, other: nn.Module, symmetry: Symmetry, params: RandomOrderParams, images: Images
) -> dict[str, Tensor]:
    """Draw an order of the units from all that keep the function.

    Source: a control for Ainsworth et al., ICLR 2023, arXiv:2209.04836.
    """
    return random_permutations(symmetry, unfolded(dict(other.named_parameters())), params.seed)


def as_it_is(
    fixed: nn.Module, other: nn.Module, symmetry: Symmetry, params: MatchingParams, images: Images
) -> dict[str, Tensor]:
    """Leave every unit in its place.

    Source: a control for Ainsworth et al., ICLR 2023, arXiv:2209.04836.
    """
    return identity(symmetry, unfolded(dict(other.named_parameters())))


def reordered(tensors: Tensors, symmetry: Symmetry, orders: Permutations) -> dict[str, Tensor]:
    """Return an encoder's tensors with units reordered, by the same names."""
    return folded(permuted(unfolded(tensors), symmetry, orders), tensors)


def cast(samples: Tensor, dtype: torch.dtype) -> Tensor:
    """Return prepared samples in a dtype, where they are numbers and no ids."""
    return samples.to(dtype) if samples.is_floating_point() else samples


@torch.no_grad()
def check_same_function(
    encoder: nn.Module, before: Tensors, after: Tensors, images: Tensor, order: Tensor | None = None
) -> float:
    """Assert in float64 that two sets of weights give the same features.

    Args:
        encoder: gives the structure, in float64.
        before: weights by the encoder's names.
        after: the same, reordered.
        images: prepared samples, (n, …).
        order: in which features come out afterwards, where they move; a head in that order then reads the same.

    Returns:
        The largest difference, relative to the largest feature.

    Raises:
        AlignmentError: they differ by more than rounding.
    """
    first, second = (
        functional_call(encoder, {name: t.double() for name, t in tensors.items()}, (cast(images, torch.float64),))
        for tensors in (before, after)
    )
    first = first if order is None else first.index_select(1, order.to(first.device))
    apart = float((first - second).abs().max() / first.abs().max().clamp(min=1e-30))
    if not apart < SAME:
        raise AlignmentError(
            f"Aligning changed what the network computes (relative difference {apart:.1e}, at most {SAME:.0e} is "
            "rounding). Nothing was written."
        )
    return apart
