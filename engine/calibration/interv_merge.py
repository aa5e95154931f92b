"""IntervMerge: low-rank changes of single tokens inside the merged encoder."""

# ruff: noqa: F722
from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..catalog.deep_calibrators import TENSORS, IntervMergeParams
from .base import kaiming_bound, uniform
from .coefficients import JointCalibrator
from .deep import Prefix
from .interventions import FUNCTIONS, orthonormal
from .losses import distance
from .tower import Tower


class IntervMerge(JointCalibrator):
    """Changes the attention output v of chosen tokens in chosen blocks, v ← v + δ(v), before the residual addition.

    Every (task, block, token, slice) has its own module; tensors have shape (tasks, blocks, tokens, slices, …). The
    final features are aligned with the expert's. Untrained modules are random, not the identity.

    The last block computes the class token only, because nothing else is read; changes of patches there have no effect.

    Source: Osial et al., arXiv:2412.17023, §3, Tables 2–4 and 7.
    Departure: the default function keeps the second bias b₂ of the code. All modules train, each once per update; the
    code registers each tensor three times (``registration``) and of the patch tokens trains only the first
    (``trained_tokens``). Merging coefficients stay frozen unless ``coefficients`` lets them learn; then tasks take
    turns and λ moves at every task's turn, as in the code. The teacher is the real expert also for TIES. Not the
    identity before training.
    """

    method: ClassVar[str] = "interv_merge"
    starts_as_identity: ClassVar[bool] = False
    config: IntervMergeParams | None

    def initialise(self, name: str, values: Tensor, generator: torch.Generator) -> None:
        """Draw R random orthonormal; without W, b ~ U(0, 1); all else ~ U(−1/√k, 1/√k)."""
        if name == "rotation":
            uniform(values, 1.0, generator)
            values.copy_(orthonormal(values))
        elif name == "bias" and self.config.function in ("lobireft", "consreft"):
            uniform(values, 0.5, generator)
            values.add_(0.5)
        else:
            _, length = self.config.segment_starts(0, self.sizes["width"])
            uniform(values, kaiming_bound(length), generator)

    def blocks_of(self, name: str) -> tuple[int, ...] | None:
        """Return the changed blocks."""
        return self._blocks()

    def inference_parameter_count(self) -> int:
        """Count what is stored, except that a bias alone collapses to one vector Rᵀb per module."""
        if self.built and self.config.function == "lobireft":
            return self.rotation.numel() // self.config.rank
        return super().inference_parameter_count()

    @property
    def updates_per_gradient(self) -> int:
        """Return 3 where the program's triple registration is asked for, else 1."""
        return 3 if self.config.registration == "triple" else 1

    def before_update(self) -> None:
        """Leave modules of further tokens as they are, where only the first token's are trained."""
        if self.config.trained_tokens == "first":
            for name in self.shapes():
                getattr(self, name).grad[:, :, 1:] = 0

    def after_update(self) -> None:
        """Bring R back to orthonormal rows."""
        if hasattr(self, "rotation"):
            with torch.no_grad():
                self.rotation.copy_(orthonormal(self.rotation))

    def prefix(self, tower: Tower, images: Float[Tensor, "n 3 h w"]) -> Prefix:
        """Run up to the first changed block: chosen tokens before it, their attention output, all others after it."""
        first, tokens = self._blocks()[0], list(self._tokens())
        x = tower.run(tower.embed(images), 0, first)
        attended = tower.attend(first, x)
        others = [token for token in range(x.shape[1]) if token not in tokens]
        rest = tower.finish(first, x[:, others], attended[:, others])
        return tower.noted(x[:, tokens], attended[:, tokens], rest)

    def student(self, tower: Tower, prefix: Prefix, rows: slice) -> Float[Tensor, "stack batch dim"]:
        """Return the features of the images with the modules of some rows."""
        blocks, tokens = self._blocks(), list(self._tokens())
        before, attended, rest = tower.resumed(prefix)
        changed = tower.finish(blocks[0], before, self.change(attended, 0, rows))
        every = range(len(tokens) + rest.shape[1])
        order = torch.tensor([*tokens, *(token for token in every if token not in tokens)]).argsort()
        x = torch.cat([changed, rest], 1)[:, order]
        last = len(tower.blocks) - 1
        for number in range(blocks[0] + 1, last + 1):
            x = self._block(tower, number, x, rows, class_only=number == last)
        features = tower.read_out(x)
        return features.view(self._stacked(rows), -1, features.shape[1])

    def _block(self, tower: Tower, number: int, x: Tensor, rows: slice, class_only: bool) -> Tensor:
        """Run one block after the first changed one."""
        attended = tower.attend(number, x, class_only)
        blocks, tokens = self._blocks(), list(self._tokens())
        if number in blocks and not (class_only and 0 not in tokens):
            asked = [0] if class_only else tokens
            changed = self.change(attended[:, asked], blocks.index(number), rows, len(asked))
            attended = attended.index_copy(1, torch.tensor(asked, device=x.device), changed)
        return tower.finish(number, x[:, :1] if class_only else x, attended)

    def change(
        self, v: Float[Tensor, "n chosen width"], place: int, rows: slice, chosen: int | None = None
    ) -> Float[Tensor, "n chosen width"]:
        """Apply v + δ(v) to the chosen tokens.

        Args:
            v: attention outputs of stack · batch images.
            place: number of the block among the changed ones.
            rows: which tasks' modules.
            chosen: how many of the first modules are used; all unless said.
        """
        delta = FUNCTIONS[self.config.function]
        starts, length = self.config.segment_starts(self._blocks()[place], self.sizes["width"])
        parts = {name: getattr(self, name)[rows, place, :chosen] for name in TENSORS[self.config.function]}
        stacked = v.view(self._stacked(rows), -1, *v.shape[1:])  # (stack, batch, tokens, width)
        slices = torch.stack([stacked[..., start : start + length] for start in starts], -2)
        h = slices.permute(0, 2, 3, 1, 4)  # (stack, tokens, slices, batch, k)
        moved = (h + delta(h, parts)).permute(0, 3, 1, 2, 4)
        if length == v.shape[-1]:
            return moved.reshape(v.shape)
        out = stacked.clone()
        for number, start in enumerate(starts):
            out[..., start : start + length] = moved[..., number, :]
        return out.view(v.shape)

    def losses(
        self, student: Float[Tensor, "stack batch dim"], teacher: Float[Tensor, "stack batch dim"]
    ) -> Float[Tensor, " stack"]:
        """Return the distance of the features to the expert's."""
        return distance(self.config.loss, student - teacher)

    def _blocks(self) -> tuple[int, ...]:
        return self.config.block_numbers(self.sizes["blocks"])

    def _tokens(self) -> tuple[int, ...]:
        return self.config.token_numbers(self.sizes["tokens"])

    def _stacked(self, rows: slice) -> int:
        return len(range(*rows.indices(len(self.tasks))))
