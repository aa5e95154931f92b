"""Multilayer perceptrons: the networks of the lesson on re-basin."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import Tensor, nn

from ..errors import AlignmentError
from ..types import Tensors
from .symmetry import Symmetry

WEIGHT = re.compile(r"^layer(\d+)\.weight$")


class Perceptron(nn.Module):
    """Inputs (n, widths[0]) → logits (n, widths[-1]), with ReLU between layers named ``layer0``, ``layer1``, …."""

    def __init__(self, widths: Sequence[int]) -> None:
        """Build layers between consecutive widths, with torch's own initial values."""
        super().__init__()
        self.depth = len(widths) - 1
        for number in range(self.depth):
            self.add_module(f"layer{number}", nn.Linear(widths[number], widths[number + 1]))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits."""
        for number in range(self.depth):
            inputs = getattr(self, f"layer{number}")(inputs)
            if number < self.depth - 1:
                inputs = inputs.relu()
        return inputs

    @classmethod
    def of(cls, tensors: Tensors) -> Perceptron:
        """Build the network that some weights belong to, in their dtype.

        Raises:
            AlignmentError: they are not those of such a network.
        """
        shapes = {int(found[1]): t.shape for name, t in tensors.items() if (found := WEIGHT.match(name))}
        if not shapes or sorted(shapes) != list(range(len(shapes))) or any(len(s) != 2 for s in shapes.values()):
            raise AlignmentError(f"No perceptron: expected layer0.weight, layer1.weight, …; found {sorted(tensors)}.")
        network = cls([shapes[0][1], *(shapes[number][0] for number in range(len(shapes)))])
        first = next(iter(tensors.values()))
        network.to(first).load_state_dict(dict(tensors))
        return network


def perceptron_symmetry(depth: int) -> Symmetry:
    """Return the symmetry of a perceptron: the units of each hidden layer, named ``P_0``, ``P_1``, ….

    Args:
        depth: number of linear layers.
    """
    return Symmetry(
        {
            f"P_{number}": (
                (f"layer{number}.weight", 0),
                (f"layer{number}.bias", 0),
                (f"layer{number + 1}.weight", 1),
            )
            for number in range(depth - 1)
        }
    )
