"""Transforms that drop or redraw entries of task vectors at random, and one that shrinks them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..catalog.row import NoParams
from ..catalog.transforms import DareParams, RandomMaskParams, WiseFtParams
from ..types import Context, TaskVectors, Weights
from .assemble import Changed
from .chance import bernoulli, normal


def dare(base: Weights, task_vectors: TaskVectors, params: DareParams, context: Context) -> Changed:
    """Drop entries at random and rescale the rest so that the expectation stays.

    Source: Yu et al., ICML 2024, arXiv:2311.03099, §3.
    Departure: the paper's factor 1/(1 − p) is used; mergekit rescales each tensor to its L1 norm.
    """
    keep = 1 - params.drop_rate

    def drop(name: str, stack: Tensor, experts: Sequence[str]) -> Tensor:
        for row, expert in zip(stack, experts, strict=True):
            row.mul_(bernoulli(keep, tuple(row.shape), context.seed, "dare", expert, name))
        return stack.div_(keep) if params.rescale else stack

    return Changed(task_vectors, drop)


def random_mask(base: Weights, task_vectors: TaskVectors, params: RandomMaskParams, context: Context) -> Changed:
    """Keep a random part of the entries, the same for all experts; nothing is rescaled.

    Source: the control of Zhang et al., 2025, arXiv:2506.09093, Table 3.
    Departure: the paper does not say at which level it draws; entries are drawn here.
    """

    def keep(name: str, stack: Tensor, experts: Sequence[str]) -> Tensor:
        return stack.mul_(bernoulli(params.keep, tuple(stack.shape[1:]), context.seed, "random_mask", name))

    return Changed(task_vectors, keep)


def wise_ft(base: Weights, task_vectors: TaskVectors, params: WiseFtParams, context: Context) -> Changed:
    """Move every expert part of the way back to the base before merging.

    Source: Wortsman et al., CVPR 2022, arXiv:2109.01903.
    """
    return Changed(task_vectors, lambda name, stack, experts: stack.mul_(params.alpha))


def random_vector(base: Weights, task_vectors: TaskVectors, params: NoParams, context: Context) -> Changed:
    """Put a random vector of the same length in the place of every task vector, tensor by tensor.

    A tensor that was not trained stays so.

    Source: the control of Ilharco et al., ICLR 2023, arXiv:2212.04089, §3.
    Departure: there is no official code; the paper's words are followed: every layer has the task vector's magnitude.
    """

    def draw(name: str, stack: Tensor, experts: Sequence[str]) -> Tensor:
        for row, expert in zip(stack, experts, strict=True):
            length = row.norm()
            row.copy_(normal(tuple(row.shape), context.seed, "random_vector", expert, name))
            row.mul_(length / row.norm().clamp(min=torch.finfo(row.dtype).tiny))
        return stack

    return Changed(task_vectors, draw)
