"""Another scaling coefficient on a merged vector that is at hand."""

from __future__ import annotations

import torch
from torch import Tensor

from ..types import Tensors
from ..weights import Memory

PART = 2**16  # entries that are worked on at once, so that base, vector and sum stay in a core's cache


class Scaled:
    """Weights θ_0 + λ v, with the base and the merged vector v in memory: one pass, to the rounding of λ v."""

    def __init__(self, base: Memory, vector: Tensors, scaling: float) -> None:
        """Bind what is added; nothing is computed yet.

        Args:
            base: θ_0.
            vector: v by layer, in the compute dtype; tensors that are no layers are the base's.
            scaling: λ.
        """
        self._base, self._vector, self._scaling = base, vector, scaling

    @property
    def names(self) -> tuple[str, ...]:
        """Return all tensors of the base, in its order."""
        return self._base.names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return self._base.shape(name)

    def dtype(self, name: str) -> torch.dtype:
        """Return the compute dtype for layers; the base's for every other tensor."""
        return self._vector[name].dtype if name in self._vector else self._base.dtype(name)

    def tensor(self, name: str) -> Tensor:
        """Return one merged tensor."""
        out = torch.empty(self.shape(name), dtype=self.dtype(name))
        self.read_into(name, out)
        return out

    def read_into(self, name: str, out: Tensor) -> None:
        """Write one merged tensor into ``out``, converted to its dtype."""
        if name not in self._vector:
            self._base.read_into(name, out)
            return
        base, vector = self._base.itself(name), self._vector[name]
        alike = base.dtype == vector.dtype == out.dtype and base.device == vector.device == out.device
        if not (alike and base.is_contiguous() and out.is_contiguous()):
            out.copy_(vector.mul(self._scaling).add_(base.to(vector.dtype)))
            return
        flat = (tensor.view(-1).split(PART) for tensor in (out, vector, base))
        for target, part, start in zip(*flat, strict=True):
            torch.mul(part, self._scaling, out=target).add_(start)
