"""Low-rank adapters that start where other tasks' inputs have least energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..catalog.fine_tuning import OsrmParams
from ..errors import EngineError
from ..features.blocks import present
from ..merging.regmean import LayerInputs
from ..zoo.encoders.attention import plain_attention
from ..zoo.encoders.training import Strategy
from .low_rank import Adapted, adapted_matrices, random_starts, wrap
from .setting import Setting

BATCH = 32


def quietest_directions(moment: Tensor, rank: int) -> Tensor:
    """Return the rows A (rank, in), orthonormal, that minimise Σ ‖A h‖² for inputs with Σ h hᵀ = ``moment``.

    Args:
        moment: the uncentred second moment (in, in) of inputs, up to a factor.
        rank: how many directions.

    Source: Zhang & Zhou, ACL 2025, arXiv:2505.22934, Eq. (6). Departure: the paper says covariance; the stated
        minimum needs the uncentred moment.
    """
    return torch.linalg.eigh(moment.double()).eigenvectors[:, :rank].T.to(moment.dtype)


def null_directions(means: Tensor, rank: int) -> Tensor:
    """Return the last right singular vectors A (rank, in) of one mean input a task, (tasks, in).

    Where width − tasks exceeds the rank, the choice within the null space is arbitrary.

    Source: the program of Zhang & Zhou, ACL 2025, arXiv:2505.22934.

    Raises:
        EngineError: fewer inputs than ranks.
    """
    if rank > means.shape[1]:
        raise EngineError(f"Rank {rank} exceeds the {means.shape[1]} inputs of the matrix. Choose a smaller rank.")
    return torch.linalg.svd(means.double()).Vh[-rank:].to(means.dtype)


def projected(update: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Return factors (B, A) of an existing update ΔW (out, in) in the span of orthonormal directions A: B = ΔW A⁺.

    Source: Zhang & Zhou, ACL 2025, arXiv:2505.22934, post-hoc variant. Departure: not in bfloat16.
    """
    return update @ torch.linalg.pinv(directions), directions


def osrm(encoder: nn.Module, params: OsrmParams, setting: Setting) -> Strategy:
    """Train LoRA whose A starts in the subspace where inputs of all other tasks are smallest.

    Source: Zhang & Zhou, ACL 2025, arXiv:2505.22934.
    Departure: the authors' code keeps one mean vector a task, which leaves A arbitrary in a large null space; the
        paper's rule, with the uncentred second moment, is the default. Two more rules are controls: where the task's
        own inputs are smallest, and a random subspace. What pads a text does not count.

    Raises:
        EngineError: there are fewer other tasks than the rule needs.
    """
    matrices = adapted_matrices(encoder, params.targets, setting.layout)
    if params.rule == "random" or setting.outlined:
        drawn = random_starts(matrices, params.rank, setting.seed)
        starts = {name: torch.linalg.qr(rows.T.double()).Q.T.to(rows) for name, rows in drawn.items()}
        return wrap(encoder, params, starts, matrices, freeze=False)
    samples = setting.own(params.images) if params.rule == "own" else setting.others(params.images)
    if not samples:
        needed = "its own task" if params.rule == "own" else "at least one other task"
        raise EngineError(f"OSRM needs {setting.many} of {needed}; this zoo has none.")
    starts = subspaces(encoder, matrices, samples, params)
    return wrap(encoder, params, starts, matrices, freeze=False)


def subspaces(
    encoder: nn.Module, matrices: Sequence[Adapted], samples: Mapping[str, Tensor], params: OsrmParams
) -> dict[str, Tensor]:
    """Find A for each matrix, from the base's inputs there on samples by task.

    Raises:
        EngineError: with ``rule: code``, more ranks than directions that the tasks leave free, or fewer tasks than
            ranks.
    """
    if params.rule == "code" and len(samples) < params.rank:
        raise EngineError(
            f"OSRM by the authors' rule keeps one mean vector a task: {len(samples)} other tasks say nothing about "
            f"{params.rank} ranks. Choose rank {len(samples)} or less, or the paper's rule."
        )
    seen = [layer_inputs(encoder, matrices, some) for some in samples.values()]
    if params.rule == "code":
        return {
            matrix.name: null_directions(torch.stack([one[matrix.tensor].mean for one in seen]), params.rank)
            for matrix in matrices
        }
    return {
        matrix.name: quietest_directions(sum(one[matrix.tensor].moment for one in seen), params.rank)
        for matrix in matrices
    }


@dataclass(frozen=True)
class Inputs:
    """The mean (in,) and the uncentred second moment (in, in) of what enters a matrix."""

    mean: Tensor
    moment: Tensor


def layer_inputs(encoder: nn.Module, matrices: Sequence[Adapted], samples: Tensor) -> dict[str, Inputs]:
    """Look at the inputs of adapted matrices on prepared samples (n, …); by the tensors' names, on the CPU.

    Tokens that pad a text do not count.
    """
    # With a gradient to follow, attention takes the path that multiplies matrices one by one.
    own = {name: parameter.detach().requires_grad_() for name, parameter in encoder.named_parameters()}
    watched = LayerInputs({matrix.tensor: own[matrix.tensor] for matrix in matrices})
    with plain_attention():
        for part in samples.split(BATCH):
            watched.there = present(encoder, part)
            with watched:
                functional_call(encoder, own, (part,))
    return {
        name: Inputs((watched.sums[name] / count).cpu(), (watched.products[name] / count).cpu())
        for name, count in watched.tokens.items()
    }
