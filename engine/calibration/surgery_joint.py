"""Surgery whose merging coefficients learn along."""

# ruff: noqa: F722
from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..catalog.deep_calibrators import SurgeryJointParams
from .base import kaiming_bound, uniform
from .coefficients import JointCalibrator
from .deep import Prefix, plain_features
from .losses import distance
from .tower import Tower


class SurgeryJoint(JointCalibrator):
    """ẑ = z − U ReLU(D z) on the features z of a merge θ₀ + Σ_k λ_k τ_k whose λ learn with D ∈ R^{r×d} and U ∈ R^{d×r}.

    U starts at zero and λ where the merge has it, so it begins as the identity. 2·d·r parameters per task, and λ. With
    ``coefficients: frozen`` it is Surgery.

    Source: Osial et al., arXiv:2412.17023, §4 and Table 6, †; the module: Yang et al., ICML 2024, arXiv:2402.02705.
    Departure: the paper does not describe this control further; here λ learns as it does with interventions: tasks take
    turns, λ moves at every task's turn by the distance to the expert's features and is clamped to [0, 1].
    """

    method: ClassVar[str] = "surgery_joint"
    config: SurgeryJointParams | None

    def initialise(self, name: str, values: Tensor, generator: torch.Generator) -> None:
        """Draw D ~ U(−1/√d, 1/√d); U is 0."""
        if name == "down":
            uniform(values, kaiming_bound(self.sizes["dim"]), generator)

    def blocks_of(self, name: str) -> tuple[int, ...] | None:
        """Return None: the module acts on the features."""
        return None

    def prefix(self, tower: Tower, images: Float[Tensor, "n 3 h w"]) -> Prefix:
        """Return the features before they are corrected."""
        return (plain_features(tower, images),)

    def student(self, tower: Tower, prefix: Prefix, rows: slice) -> Float[Tensor, "stack batch dim"]:
        """Return the corrected features."""
        (features,) = prefix
        down, up = self.down[rows], self.up[rows]
        z = features.view(len(down), -1, features.shape[-1])
        return z - torch.bmm(torch.bmm(z, down.mT).relu(), up.mT)

    def losses(
        self, student: Float[Tensor, "stack batch dim"], teacher: Float[Tensor, "stack batch dim"]
    ) -> Float[Tensor, " stack"]:
        """Return the distance of the features to the expert's."""
        return distance(self.config.loss, student - teacher)
