"""Weight averaging and task arithmetic."""

from __future__ import annotations

from ..catalog import NoParams
from ..catalog.basic import TaskArithmeticParams
from ..types import Context, Static, TaskVectors, Weights
from .assemble import add_to_base, in_pieces, total


def weight_average(base: Weights, task_vectors: TaskVectors, params: NoParams, context: Context) -> Static:
    """Average the experts' weights: the base plus the mean task vector.

    Source: Wortsman et al., ICML 2022, arXiv:2203.05482.
    Departure: all experts are averaged. Several published scripts drop the last of eight by a truncated zip and still
        divide by eight; Task Arithmetic with λ = 0.125 and weight 0 for that expert repeats them.
    """
    return add_to_base(base, task_vectors, lambda name: in_pieces(task_vectors, name, lambda piece: piece.mean(dim=0)))


def task_arithmetic(base: Weights, task_vectors: TaskVectors, params: TaskArithmeticParams, context: Context) -> Static:
    """Add the scaled sum of task vectors to the base.

    A recipe's expert weights give negation (a negative weight) and analogy (+1, +1, −1).

    Source: Ilharco et al., ICLR 2023, arXiv:2212.04089, §2.
    """
    return add_to_base(base, task_vectors, lambda name: total(task_vectors, name, params.scaling))
