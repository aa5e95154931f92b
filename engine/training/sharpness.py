"""Steps with the gradient at the top of a small climb."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..catalog.fine_tuning import SaftParams, SamParams
from ..zoo.encoders.training import Step, Strategy, whole_encoder
from .setting import Setting

TINY = 1e-12
Length = Literal["plain", "weights", "code", "printed"]


def perturbation(
    weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], rho: float, length: Length, eta: float = 0.0
) -> dict[str, Tensor]:
    """Return the climb ε of sharpness-aware minimisation.

    Args:
        weights: θ by name.
        gradients: ∇L(θ) by name; the norm is taken over all of them.
        rho: the radius ρ.
        length: ``plain``: ρ g / ‖g‖. ``code``: ρ θ²g / ‖|θ|g‖, on every parameter. ``printed``: ρ θ²g / ‖g‖.
            ``weights``: ρ T²g / ‖Tg‖ with T = |θ| + η on parameters named weight, 1 on the others.
        eta: η.

    Source: Foret et al., ICLR 2021, arXiv:2010.01412, Eq. (2); Kwon et al., ICML 2021, arXiv:2102.11600, Eq. (5);
        Lee et al., ICLR 2025, arXiv:2504.14662, Eq. (7). Departure: ``code`` is what the last authors run.
    """
    stretch: Callable[[str, Tensor], Tensor | float]
    if length == "plain":
        stretch = lambda name, weight: 1.0  # noqa: E731
    elif length == "weights":
        stretch = lambda name, weight: weight.abs() + eta if "weight" in name else 1.0  # noqa: E731
    else:
        stretch = lambda name, weight: weight.abs()  # noqa: E731
    scaled = {name: gradient * stretch(name, weights[name]) for name, gradient in gradients.items()}
    measured = gradients if length == "printed" else scaled
    norm = torch.stack([vector.norm() for vector in measured.values()]).norm()
    factor = rho / (norm + TINY)
    return {name: vector * stretch(name, weights[name]) * factor for name, vector in scaled.items()}


@dataclass(frozen=True)
class Climb:
    """Climb along a batch's gradient, take the gradient there, come back and step with it.

    The gradient at the top is not clipped, as in the published programs; clipping the one below changes its length
    only, which cancels. ``accumulate`` leaves the last step's gradient in the climb.
    """

    model: nn.Module
    rho: float
    length: Length
    eta: float = 0.0
    accumulate: bool = False

    def __call__(self, step: Step) -> Tensor:
        """Take one step; returns the loss before it."""
        if not self.accumulate:
            step.clear()
        loss = step.gradient()
        step.clip()
        with self._above(step.parameters), _still_statistics(self.model):
            step.clear()
            step.gradient()
        step.move(clip=False)
        return loss

    @contextmanager
    def _above(self, parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
        """Weights θ + ε within this block; afterwards, whatever happens, exactly θ again."""
        gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
        before = {name: parameters[name].detach().clone() for name in gradients}
        with torch.no_grad():
            climb = perturbation(before, gradients, self.rho, self.length, self.eta)
            for name, vector in climb.items():
                parameters[name].add_(vector)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, weight in before.items():
                    parameters[name].copy_(weight)


@contextmanager
def _still_statistics(model: nn.Module) -> Iterator[None]:
    """Batch normalisation counts a batch once, however often it is passed through."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    momenta = [module.momentum for module in norms]
    counts = [None if module.num_batches_tracked is None else module.num_batches_tracked.clone() for module in norms]
    for module in norms:
        module.momentum = 0.0
    try:
        yield
    finally:
        for module, momentum, count in zip(norms, momenta, counts, strict=True):
            module.momentum = momentum
            if count is not None:
                module.num_batches_tracked.copy_(count)


def sam(encoder: nn.Module, params: SamParams, setting: Setting) -> Strategy:
    """Train every parameter by sharpness-aware minimisation, adaptive or not.

    Source: Foret et al., ICLR 2021, arXiv:2010.01412, Algorithm 1; Kwon et al., ICML 2021, arXiv:2102.11600.
    Departure: gradients at the top are not clipped, as in the published programs.
    """
    length: Length = "plain" if params.scale == "none" else "weights"
    return whole_encoder(encoder, Climb(encoder, params.rho, length, params.eta))


def saft(encoder: nn.Module, params: SaftParams, setting: Setting) -> Strategy:
    """Train every parameter by adaptive sharpness-aware minimisation as SAFT does.

    Source: Lee et al., ICLR 2025, arXiv:2504.14662.
    Departure: the length of the climb is that of the authors' code, not of Eq. (7) as printed; gradients are cleared
        between steps, which the published loop does not do. Both are offered.
    """
    climb = Climb(encoder, params.rho, params.length, accumulate=params.accumulate)
    whole = whole_encoder(encoder, climb)
    return Strategy(whole.model, whole.tensors, climb, keeps_gradients=True) if params.accumulate else whole
