"""Merging along spheres: SLERP, MultiSLERP and the Karcher mean."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..catalog.weighted import KarcherParams, MultiSlerpParams, SlerpParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import MergedVector, add_to_base, flat

COLLINEAR = 0.9995
TINY = 1e-8


def slerp(base: Weights, task_vectors: TaskVectors, params: SlerpParams, context: Context) -> Static:
    """Go from one expert to the other along a great circle.

    Source: Shoemake, SIGGRAPH 1985; Goddard et al., MergeKit, EMNLP 2024 industry track, arXiv:2403.13257.
    Departure: task vectors, which are nearly orthogonal, are turned by default. The weights that mergekit turns are
        nearly collinear for experts of one base, so that its result is almost the average.
    """
    read = _reader(base, task_vectors, params.on)
    shared = _whole_model_factors(task_vectors, read, params.t) if params.scope == "model" else None

    def vector(name: str) -> Tensor:
        first, second = read(name)
        near, far = shared or _slerp_factors(
            _inner(first, first), _inner(second, second), _inner(first, second), params.t
        )
        return first * near + second * far

    return _from_read(base, task_vectors, vector, params.on)


def multislerp(base: Weights, task_vectors: TaskVectors, params: MultiSlerpParams, context: Context) -> Static:
    """Take the mean direction of all experts and their mean length, tensor by tensor.

    Source: MergeKit, Goddard et al., EMNLP 2024 industry track, arXiv:2403.13257.
    Departure: the tangent space at the mean direction, through which mergekit goes and back, is left out: the weighted
        mean there is zero for any weights, so it changes nothing.
    """
    read = _reader(base, task_vectors, params.on)
    count = len(task_vectors.experts)
    return _from_read(base, task_vectors, lambda name: mean_direction(read(name), [1 / count] * count), params.on)


def karcher(base: Weights, task_vectors: TaskVectors, params: KarcherParams, context: Context) -> Static:
    """Find the direction with the least squared angles to all experts, tensor by tensor; lengths are averaged.

    Source: Karcher, 1977, as implemented by MergeKit, arXiv:2403.13257.
    """
    read = _reader(base, task_vectors, params.on)

    def vector(name: str) -> Tensor:
        return karcher_mean(read(name), params.max_iterations, params.tolerance)

    return _from_read(base, task_vectors, vector, params.on)


def mean_direction(stack: Tensor, weights: list[float]) -> Tensor:
    """Return Σ w_k ‖v_k‖ times the direction of Σ w_k v_k/‖v_k‖, for a stack (K, *shape) and weights that sum to 1.

    Opposite vectors have no mean direction; they give the weighted mean of the vectors.
    """
    share = torch.tensor(weights, dtype=stack.dtype)
    norms = torch.linalg.vector_norm(flat(stack), dim=1)
    if len(weights) == 1 or not norms.any():
        return stack[0]
    direction = (share / (norms + TINY)) @ flat(stack)
    length = torch.linalg.vector_norm(direction)
    if length < TINY:
        return (share @ flat(stack)).view(stack.shape[1:])
    return (direction / length * (share @ norms)).view(stack.shape[1:])


def karcher_mean(stack: Tensor, max_iterations: int, tolerance: float) -> Tensor:
    """Return the Riemannian centre of mass of directions, times the mean length; zero vectors only shorten it."""
    rows = flat(stack)
    norms = torch.linalg.vector_norm(rows, dim=1)
    moved = norms > 0
    if not moved.any():
        return stack[0]
    units = rows[moved] / norms[moved, None]
    mean = units.mean(dim=0)
    length = torch.linalg.vector_norm(mean)
    mean = units[0] if length < TINY else mean / length
    for _ in range(max_iterations):
        cosines = (units @ mean).clamp(-1, 1)
        angles = cosines.acos()
        stretch = torch.where(angles > TINY, angles / angles.sin().clamp(min=TINY), 1.0)
        tangent = (stretch @ units - (stretch * cosines).sum() * mean) / len(units)
        step = torch.linalg.vector_norm(tangent)
        if step < tolerance:
            break
        mean = mean * step.cos() + tangent * (step.sin() / step)
        mean = mean / torch.linalg.vector_norm(mean)
    return (mean * norms.mean()).view(stack.shape[1:])


def _reader(base: Weights, task_vectors: TaskVectors, on: str) -> Callable[[str], Tensor]:
    """Return a reader of what is turned: task vectors, or whole weights."""
    if on == "task_vectors":
        return task_vectors.stack
    return lambda name: task_vectors.stack(name).add_(base.tensor(name).to(task_vectors.dtype))


def _from_read(base: Weights, task_vectors: TaskVectors, vector: MergedVector, on: str) -> Static:
    if on == "task_vectors":
        return add_to_base(base, task_vectors, vector)
    dtype = task_vectors.dtype
    return add_to_base(base, task_vectors, lambda name: vector(name) - base.tensor(name).to(dtype))


def _inner(first: Tensor, second: Tensor) -> float:
    return torch.dot(first.reshape(-1), second.reshape(-1)).item()


def _whole_model_factors(task_vectors: TaskVectors, read: Callable[[str], Tensor], t: float) -> tuple[float, float]:
    products = [0.0, 0.0, 0.0]
    for name in task_vectors.names:
        first, second = read(name)
        for place, (left, right) in enumerate(((first, first), (second, second), (first, second))):
            products[place] += _inner(left, right)
    return _slerp_factors(*products, t)


def _slerp_factors(first: float, second: float, inner: float, t: float) -> tuple[float, float]:
    """Return the two vectors' factors, from their squared norms and inner product."""
    norms = [math.sqrt(value) for value in (first, second)]
    scale = math.prod(norm if norm > TINY else 1.0 for norm in norms)
    cosine = max(-1.0, min(1.0, inner / scale))
    if abs(cosine) > COLLINEAR:
        return 1 - t, t
    angle = math.acos(cosine)
    return math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)
