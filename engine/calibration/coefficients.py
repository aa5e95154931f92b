"""Merging coefficients that learn together with a calibrator inside the encoder."""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import CalibrationError
from ..merging.adamerging import combine
from ..merging.assemble import flat
from .deep import DeepCalibrator
from .stack import Stack
from .text_tower import tower_of
from .tower import Tower


@dataclass(frozen=True)
class LinearMerge:
    """A merge θ = θ₀ + Σ_k λ_k τ_k whose coefficients can go on learning; K experts, L layers.

    ``base`` has every tensor of the encoder by its name in the encoder's state dict, ``vectors`` the task vectors
    (K, *shape) of its layers, in the encoder's dtype and on its device. ``start`` has shape (L, K), or (1, K) for one
    coefficient an expert.
    """

    base: Mapping[str, Tensor]
    vectors: Mapping[str, Tensor]
    start: Float[Tensor, "rows experts"]
    experts: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise CalibrationError where shapes do not belong together."""
        rows, experts = self.start.shape
        if rows not in (1, len(self.vectors)) or experts != len(self.experts):
            raise CalibrationError(
                f"Coefficients have shape {(rows, experts)}; {len(self.experts)} experts with {len(self.vectors)} "
                f"layers need (1, {len(self.experts)}) or ({len(self.vectors)}, {len(self.experts)})."
            )

    @property
    def layers(self) -> tuple[str, ...]:
        """Return the names of the layers, in the order of the coefficients' rows."""
        return tuple(self.vectors)

    def to(self, device: torch.device) -> LinearMerge:
        """Return the same merge on a device."""
        base, vectors = (
            {name: tensor.to(device) for name, tensor in part.items()} for part in (self.base, self.vectors)
        )
        return replace(self, base=base, vectors=vectors, start=self.start.to(device))

    def weights(self, used: Float[Tensor, "rows experts"]) -> dict[str, Tensor]:
        """Return the merged model with these coefficients, freshly allocated."""
        rows = dict(zip(self.layers, used.expand(len(self.vectors), -1), strict=True))
        return {
            name: combine(rows[name], self.vectors[name]).add_(tensor) if name in rows else tensor
            for name, tensor in self.base.items()
        }

    def slope(self, gradients: Mapping[str, Tensor], used: Tensor) -> Float[Tensor, "layers experts"]:
        """Return the gradient in each coefficient: inner products of the weights' gradient with the task vectors."""
        found = torch.zeros((len(self.vectors), used.shape[1]), dtype=used.dtype, device=used.device)
        for row, name in zip(found, self.layers, strict=True):
            if name in gradients:
                row.copy_(flat(self.vectors[name]) @ gradients[name].reshape(-1))
        return found


class JointCalibrator(DeepCalibrator):
    """A calibrator inside the encoder whose merging coefficients may learn along.

    Its row says ``learns_coefficients``, and its config has ``coefficients``: ``frozen``, ``task`` (one an expert) or
    ``layer`` (one an expert and layer).
    """

    def fixed_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of the learned coefficients, (layers, experts) or (1, experts), where there are any."""
        if self.config.coefficients == "frozen":
            return {}
        rows = self.sizes["layers"] if self.config.coefficients == "layer" else 1
        return {"coefficients": (rows, self.sizes["experts"])}

    def join(self, tower: Tower, merge: LinearMerge | None, stack: Stack) -> JointStudent | None:
        """Give the calibrator coefficients that start where the merge has them; None where they stay frozen.

        In the state they are as they are learned; the forward pass clamps them.

        Raises:
            CalibrationError: a merge is given although coefficients stay frozen, or none although they learn.
        """
        if (merge is None) != (self.config.coefficients == "frozen"):
            raise CalibrationError(
                "Merging coefficients learn where `coefficients` is task or layer and a linear merge is given; here "
                f"`coefficients` is {self.config.coefficients} and {'no' if merge is None else 'a'} merge is given."
            )
        if merge is None:
            return None
        self.sizes |= {"layers": len(merge.layers), "experts": len(merge.experts)}
        rows = self.fixed_shapes()["coefficients"][0]
        start = merge.start.to(tower.weight.device, tower.weight.dtype)
        start = start.expand(rows, -1) if len(start) <= rows else start.mean(0, keepdim=True)
        self.coefficients = nn.Parameter(start.clone(memory_format=torch.contiguous_format))
        stack.beside.append(self.coefficients.data)
        return JointStudent(self, tower.visual, merge, self.coefficients)

    def merged_weights(self, merge: LinearMerge) -> dict[str, Tensor]:
        """Return the merged model that the calibrator acts in once its coefficients have learned."""
        with torch.no_grad():
            return merge.weights(self.coefficients.clamp(0, 1))


class JointStudent:
    """A calibrator inside an encoder that is merged anew for every batch.

    Source: Osial et al., arXiv:2412.17023, and its program: λ is clamped to [0, 1] in the forward pass and moves at
    every task's step by the same distance to the expert's features.
    """

    def __init__(self, module: DeepCalibrator, encoder: nn.Module, merge: LinearMerge, learned: nn.Parameter) -> None:
        """Bind the parts.

        Args:
            module: the calibrator.
            encoder: gives the structure; its own weights are not read.
            merge: base and task vectors.
            learned: the coefficients before they are clamped, of the shape of ``merge.start``; its ``grad`` is set.
        """
        self._inside, self._merge, self.learned = _Inside(module, encoder), merge, learned

    @torch.enable_grad()
    def backward(self, images: Tensor, teacher: Tensor, rows: slice) -> Float[Tensor, " stack"]:
        """Add the gradients of some rows' loss and of the coefficients, and return the loss.

        Args:
            images: of stack · batch.
            teacher: (stack, batch, aligned).
            rows: which modules.
        """
        used = self.learned.clamp(0, 1)
        weights = self._merge.weights(used.detach())
        leaves = {name: weights[name].requires_grad_() for name in self._merge.layers}
        renamed = {f"tower.{name}": tensor for name, tensor in weights.items()}
        student = torch.func.functional_call(self._inside, renamed, (images, rows))
        loss = self._inside.module[0].losses(student, teacher)
        loss.sum().backward()
        gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
        slope = self._merge.slope(gradients, used)
        self.learned.grad = None
        used.backward(slope if len(used) > 1 else slope.sum(0, keepdim=True))
        return loss.detach()


class _Inside(nn.Module):
    """The student as a module, so that the encoder's weights can be replaced in one call."""

    def __init__(self, module: DeepCalibrator, encoder: nn.Module) -> None:
        super().__init__()
        self.tower, self.module = encoder, [module]  # in a list: its parameters are no part of this module

    def forward(self, images: Tensor, rows: slice) -> Tensor:
        tower, (module,) = tower_of(self.tower), self.module
        return module.student(tower, module.prefix(tower, images), rows)
