"""ProbSurgery: the representation bias as a normal distribution."""

# ruff: noqa: F722
from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..catalog.calibrators import ProbSurgeryParams
from .base import kaiming_bound, uniform
from .losses import distance, distance_and_gradient
from .output import OutputCalibrator, Rows
from .scoring import distribution_score, divergence, score_and_gradients


class ProbSurgery(OutputCalibrator):
    """bias ~ N(μ, diag σ²) with a = ReLU(P z), μ = M a, log σ² = V a; corrected features are z − μ.

    P ∈ R^{h×d} (``narrow``), M and V ∈ R^{d×h} (``mean``, ``log_variance``); additive terms only with ``bias``. M and
    V start at zero: mean 0, variance 1. Training draws ξ = mean + ε⊙σ once per image and minimises
    ψ(z − ξ, z_expert) + λ·KL(N(mean, variance) ‖ N(0, I)), the KL summed over dimensions and averaged over the batch.
    Sharing ``dfa`` trains one module on all tasks with the same loss; ``pda`` scores the predicted distribution (see
    :mod:`.scoring`).

    3·d·h parameters per module, 2·d·h at inference; with ``bias`` h + 2·d and h + d more.

    Source: Wei et al., ICML 2025, §3 (one-to-one), Eq. 8 (DFA), Eq. 9–10 (PDA), appendix B.3.
    Departure: V gives the log-variance, as in the code. A module has 3·d·h parameters (2·d·h at inference), where Table
    6 counts P and M with additive terms (131,712 for d = 512: ``bias`` at inference); the code has none. Its width of
    128 is eight times Surgery's: compare with Surgery of rank 128 (equal width) or 192 (equal parameters). DFA takes
    one Adam update per task in turn, as in the code; Eq. 8 is a sum (``dfa_step: sum``). PDA has no published code; Eq.
    10's plus sign drives σ to 0, so the proper energy score is the default. The last iterate is reported, never the
    best on test.
    """

    method: ClassVar[str] = "prob_surgery"
    training_only: ClassVar[tuple[str, ...]] = ("log_variance", "log_variance_bias")
    config: ProbSurgeryParams | None

    @property
    def shared(self) -> bool:
        """Return whether one module serves every task."""
        return self.config is not None and self.config.sharing != "none"

    @property
    def summed(self) -> bool:
        """Return whether the one module moves on the mean over tasks."""
        return self.config.dfa_step == "sum"

    @property
    def noise_draws(self) -> int:
        """Return how often ε is drawn per image and update: once, with PDA r times."""
        return self.config.pda_samples if self.config.sharing == "pda" else 1

    def initialise(self, name: str, values: Tensor, generator: torch.Generator) -> None:
        """Draw P and its bias ~ U(−1/√d, 1/√d); all else is 0."""
        if name in ("narrow", "narrow_bias"):
            uniform(values, kaiming_bound(self.sizes["dim"]), generator)

    def predict(self, z: Float[Tensor, "stack batch dim"], rows: Rows) -> Float[Tensor, "stack batch dim"]:
        """Return μ = M ReLU(P z)."""
        return self._map("mean", self._hidden(z, rows), rows)

    @torch.no_grad()
    def sigma(self, z: Float[Tensor, "n dim"], task: str) -> Float[Tensor, "n dim"]:
        """Return the predicted standard deviation of the bias per dimension, in feature units; ones before fitting.

        Raises:
            CalibrationError: not trained for this task.
        """
        if not self.built:
            return torch.ones_like(z)
        rows = slice(self.row(task), self.row(task) + 1)
        hidden = self._hidden(self._cast(z)[None], rows)
        return self._map("log_variance", hidden, rows)[0].mul_(0.5).exp_()

    def losses(
        self,
        z: Float[Tensor, "stack batch dim"],
        target: Float[Tensor, "stack batch dim"],
        noise: Float[Tensor, "stack draws batch dim"],
        rows: Rows,
    ) -> Float[Tensor, " stack"]:
        """Return ψ(z − ξ, z_expert) + λ·KL of one draw an image, or the score of the distribution with PDA."""
        hidden = self._hidden(z, rows)
        mu, log_variance = self._map("mean", hidden, rows), self._map("log_variance", hidden, rows)
        if self.config.sharing == "pda":
            return distribution_score(mu, log_variance, noise, z - target, self.config)
        drawn = mu + noise[:, 0] * torch.exp(log_variance * 0.5)
        losses = distance(self.config.loss, z - drawn - target)
        return losses + self.config.kl_weight * divergence(mu, log_variance)

    @torch.no_grad()
    def accumulate(
        self,
        z: Float[Tensor, "stack batch dim"],
        target: Float[Tensor, "stack batch dim"],
        noise: Float[Tensor, "stack draws batch dim"],
        rows: Rows,
    ) -> Float[Tensor, " stack"]:
        """Write the gradients out: ∂M = ∂μᵀa, ∂V = ∂sᵀa, ∂P = ((∂μ M + ∂s V) ⊙ 1[a > 0])ᵀ z, where s = log σ²."""
        hidden = self._hidden(z, rows)
        mu, log_variance = self._map("mean", hidden, rows), self._map("log_variance", hidden, rows)
        if self.config.sharing == "pda":
            losses, d_mu, d_log = score_and_gradients(mu, log_variance, noise, z - target, self.config)
        else:
            losses, d_mu, d_log = self._sampled(z, target, noise[:, 0], mu, log_variance)
        torch.bmm(d_mu.mT, hidden, out=self.mean.grad[rows])
        torch.bmm(d_log.mT, hidden, out=self.log_variance.grad[rows])
        back = torch.bmm(d_mu, self.mean[rows]).baddbmm_(d_log, self.log_variance[rows]).mul_(hidden > 0)
        torch.bmm(back.mT, z, out=self.narrow.grad[rows])
        if self.config.bias:
            for name, gradient in (("narrow", back), ("mean", d_mu), ("log_variance", d_log)):
                torch.sum(gradient, -2, out=getattr(self, f"{name}_bias").grad[rows])
        return losses

    def _hidden(self, z: Tensor, rows: Rows) -> Tensor:
        return self._map("narrow", z, rows).relu_()

    def _map(self, name: str, x: Tensor, rows: Rows) -> Tensor:
        """Apply one of the three maps, with its bias where there is one."""
        out = torch.bmm(x, getattr(self, name)[rows].mT)
        return out.add_(getattr(self, f"{name}_bias")[rows, None]) if self.config.bias else out

    def _sampled(
        self, z: Tensor, target: Tensor, noise: Tensor, mu: Tensor, log_variance: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss with one draw per image, and its gradients with respect to μ and log σ²."""
        weight, batch = self.config.kl_weight, z.shape[-2]
        sigma = torch.exp(log_variance * 0.5)
        spread = noise * sigma
        variance = sigma.square_()
        losses, slope = distance_and_gradient(self.config.loss, (z - mu).sub_(spread).sub_(target))
        d_log = spread.mul_(slope).mul_(-0.5)
        d_mu = slope.neg_()
        if weight:
            terms = mu.square().add_(variance).sub_(log_variance).sub_(1)
            losses = losses.add(terms.sum((-2, -1)), alpha=0.5 * weight / batch)
            d_mu.add_(mu, alpha=weight / batch)
            d_log.add_(variance.sub_(1), alpha=0.5 * weight / batch)
        return losses, d_mu, d_log
