"""Parameters of many small modules in one buffer, and the Adam that moves them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

Shapes = Mapping[str, tuple[int, ...]]


class Stack:
    """Parameters of ``rows`` modules of one kind, each tensor with a leading row axis.

    Values and gradients live in two flat buffers, so that one elementwise Adam update covers all modules: with
    per-task losses that are summed this is the same as one Adam per task.
    """

    def __init__(self, shapes: Shapes, rows: int, dtype: torch.dtype, device: torch.device | str) -> None:
        self.rows = rows
        total = rows * sum(math.prod(shape) for shape in shapes.values())
        self.values = torch.zeros(total, dtype=dtype, device=device)
        self.gradients = torch.zeros_like(self.values)
        self.parameters: dict[str, nn.Parameter] = {}
        self.beside: list[Tensor] = []  # tensors that belong to no row and are trained along
        start = 0
        for name, shape in shapes.items():
            end = start + rows * math.prod(shape)
            parameter = nn.Parameter(self.values[start:end].view(rows, *shape))
            parameter.grad = self.gradients[start:end].view(rows, *shape)
            self.parameters[name] = parameter
            start = end

    def snapshot(self) -> list[Tensor]:
        """Return a copy of all values, and of what is trained beside them."""
        return [self.values.clone(), *(tensor.detach().clone() for tensor in self.beside)]

    @torch.no_grad()
    def restore(self, values: list[Tensor]) -> None:
        """Set all values back to a snapshot."""
        for tensor, kept in zip((self.values, *self.beside), values, strict=True):
            tensor.copy_(kept)

    def is_finite(self) -> bool:
        """Tell whether every value is a number."""
        return all(bool(torch.isfinite(tensor).all()) for tensor in (self.values, *self.beside))


class IndependentAdam:
    """Adam (β 0.9 and 0.999, ε 1e-8) on the whole stack: elementwise, hence T independent Adams."""

    def __init__(self, stack: Stack, learning_rate: float) -> None:
        buffer = nn.Parameter(stack.values)
        buffer.grad = stack.gradients
        self._adam = _adam([buffer], learning_rate)

    def step(self) -> None:
        """Move every module by its gradient."""
        self._adam.step()


class AdamInTurn:
    """Adam for modules that are visited one after another.

    ``drifting`` is one Adam for all modules as torch 1.x ran it: gradients of modules that were not used stayed as
    zeros, so each module that has been visited once keeps moving on its momentum at the steps of the others, and its
    step counter advances with them.

    Departure: drifting is not the default; the published trajectories of ProbSurgery's code under torch 1.13 need it.
    """

    def __init__(self, stack: Stack, learning_rate: float, *, drifting: bool) -> None:
        self._gradients, self._drifting = stack.gradients, drifting
        self._adams = []
        for row in range(stack.rows):
            views = []
            for parameter in stack.parameters.values():
                view = nn.Parameter(parameter.data[row])
                view.grad = None if parameter.grad is None else parameter.grad[row]
                views.append(view)
            self._adams.append(_adam(views, learning_rate))
        self._visited: list[int] = []

    def step(self, row: int, times: int = 1) -> None:
        """Move the module that was used by its gradient; drifting, all others seen before by a gradient of zero.

        Args:
            row: the module that was used; gradients of all others are zero.
            times: updates with this one gradient.
        """
        if row not in self._visited:
            self._visited.append(row)
        for visited in self._visited if self._drifting else [row]:
            for _ in range(times):
                self._adams[visited].step()
        self._gradients.zero_()


def _adam(parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.Adam:
    fused = parameters[0].device.type in ("cpu", "cuda")
    return torch.optim.Adam(parameters, lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, fused=fused)
