"""Surgery: a deterministic two-layer module predicts the representation bias."""

# ruff: noqa: F722
from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..catalog.calibrators import SurgeryParams
from .base import kaiming_bound, uniform
from .losses import distance_and_gradient
from .output import OutputCalibrator, Rows


class Surgery(OutputCalibrator):
    """bias = U ReLU(D z), ẑ = z − bias; D ∈ R^{r×d}, U ∈ R^{d×r}, no additive terms.

    U starts at zero, so it begins as the identity. 2·d·r parameters per task.

    Source: Yang et al., ICML 2024, arXiv:2402.02705.
    Departure: the bias is subtracted, as in the code; IntervMerge §3.1 writes it without the subtraction. The loss is a
    mean over batch and dimensions and each task has its own Adam, as in the code under torch ≥ 2; ``adam_semantics:
    shared`` reproduces older versions. ProbSurgery's Table 6 counts 131,072 parameters for one module; that is eight
    modules of 2·d·r.
    """

    method: ClassVar[str] = "surgery"
    config: SurgeryParams | None

    @property
    def shared(self) -> bool:
        """Return whether one module serves every task."""
        return self.config is not None and self.config.sharing == "all"

    def initialise(self, name: str, values: Tensor, generator: torch.Generator) -> None:
        """Draw D ~ U(−1/√d, 1/√d); U is 0."""
        if name == "down":
            uniform(values, kaiming_bound(self.sizes["dim"]), generator)

    def predict(self, z: Float[Tensor, "stack batch dim"], rows: Rows) -> Float[Tensor, "stack batch dim"]:
        """Return U ReLU(D z)."""
        return torch.bmm(torch.bmm(z, self.down[rows].mT).relu_(), self.up[rows].mT)

    @torch.no_grad()
    def accumulate(
        self,
        z: Float[Tensor, "stack batch dim"],
        target: Float[Tensor, "stack batch dim"],
        noise: None,
        rows: Rows,
    ) -> Float[Tensor, " stack"]:
        """Write the gradients out: with g = ∂ψ/∂ẑ, ∂U = −gᵀh and ∂D = (−(gU) ⊙ 1[h > 0])ᵀ z."""
        down, up = self.down[rows], self.up[rows]
        hidden = torch.bmm(z, down.mT).relu_()
        difference = torch.baddbmm(z, hidden, up.mT, alpha=-1).sub_(target)
        losses, slope = distance_and_gradient(self.config.loss, difference)
        slope.neg_()
        torch.bmm(slope.mT, hidden, out=self.up.grad[rows])
        back = torch.bmm(slope, up).mul_(hidden > 0)
        torch.bmm(back.mT, z, out=self.down.grad[rows])
        return losses
