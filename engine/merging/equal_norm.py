"""Controls of LwPTV that keep as much of the merged vector as it does, without choosing layers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..catalog.transforms import LayerPruningParams, RandomLayersParams
from ..errors import MergeError
from ..masks import lwptv_masks
from ..types import Context, TaskVectors, Weights
from .assemble import Changed, total
from .chance import uniform
from .lwptv import salience


def equal_norm(base: Weights, task_vectors: TaskVectors, params: LayerPruningParams, context: Context) -> Changed:
    """Shrink every task vector by one factor, so that ‖Σ_k τ_k‖₂ is what LwPTV with the same η would leave of it.

    Source: a control of Zhang et al., 2025, arXiv:2506.09093.
    Departure: the paper has no such control. Moving less also helps other domains, whatever is left out, so the merged
        vector is made as long as LwPTV's without choosing layers.
    """
    squares, kept = _squares(task_vectors, context), _kept(task_vectors, params, context)
    whole = math.fsum(squares)
    factor = math.sqrt(math.fsum(squares[kept]) / whole) if whole else 1.0
    return Changed(
        task_vectors,
        lambda name, stack, experts: stack.mul_(factor),
        details={"factor": factor},
        elementwise=True,
    )


def random_layers(base: Weights, task_vectors: TaskVectors, params: RandomLayersParams, context: Context) -> Changed:
    """Keep layers in a random order, the same for all experts, until ‖Σ_k τ_k‖₂ is what LwPTV would leave of it.

    The last layer that is kept is shrunk, so that the norms are equal and no layer is likelier than another. With
    ``as_many`` whole layers are kept, as many as LwPTV keeps, whatever their norm.

    Source: a control of Zhang et al., 2025, arXiv:2506.09093.
    Departure: the paper's random mask states neither its level nor its share; this one draws layers up to LwPTV's norm
        or number.
    """
    names, kept = task_vectors.names, _kept(task_vectors, params, context)
    order = [names[index] for index in uniform((len(names),), context.seed, "random_layers").argsort().tolist()]
    factors = dict.fromkeys(names, 0.0)
    if params.as_many:
        factors.update(dict.fromkeys(order[: int(kept.sum())], 1.0))
    else:
        squares = dict(zip(names, _squares(task_vectors, context).tolist(), strict=True))
        left = math.fsum(squares[name] for name, stays in zip(names, kept, strict=True) if stays)
        for name in order:
            if left <= 0:
                break
            factors[name] = math.sqrt(min(1.0, left / squares[name])) if squares[name] else 1.0
            left -= squares[name]

    def shrink(name: str, stack: Tensor, experts: Sequence[str]) -> Tensor:
        return stack.mul_(factors[name])

    pruned = frozenset(name for name, factor in factors.items() if not factor)
    details = {"kept_layers": len(names) - len(pruned), "layers": len(names)}
    return Changed(task_vectors, shrink, pruned=pruned, details=details, elementwise=True)


def _kept(task_vectors: TaskVectors, params: LayerPruningParams, context: Context) -> np.ndarray:
    """Return the layers that LwPTV keeps, boolean (L,)."""
    if len(task_vectors.experts) < 2:
        raise MergeError("LwPTV's norm comes from comparing experts; choose at least 2, or leave this transform out.")
    _, scores = salience(task_vectors, context)
    return lwptv_masks(scores, params.eta, params.count_frozen)[1]


def _squares(task_vectors: TaskVectors, context: Context) -> np.ndarray:
    """Return the squared norm of the summed task vectors in every layer, float64 (L,)."""
    found = np.zeros(len(task_vectors.names))
    for index, name in enumerate(task_vectors.names):
        found[index] = float(torch.linalg.vector_norm(total(task_vectors, name), dtype=torch.float64)) ** 2
        context.progress((index + 1) / len(found), f"Norm of {name}")
    return found
