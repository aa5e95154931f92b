"""SurgeryV2: Surgery on every token after every block."""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..catalog.deep_calibrators import SurgeryV2Params
from .base import kaiming_bound, uniform
from .deep import ENCODE_BATCH, DeepCalibrator, Prefix
from .losses import distance
from .text_tower import tower_of
from .tower import Tower, frozen


class SurgeryV2(DeepCalibrator):
    """After block l, X ← X − U_l ReLU(D_l X) on all tokens; after the projection, f ← f − U ReLU(D f).

    Aligned with the expert: the mean over tokens (class token included) of the corrected X after every block, and f.
    The loss is the sum of these blocks + 1 distances. U starts at zero, so it begins as the identity.
    2·r·(blocks·W + d) parameters per task.

    Source: Yang et al., arXiv:2410.14389.
    Departure: blocks and widths come from the encoder (the code fixes 12 and 768); ``statistic: class`` aligns the
    class token instead of the mean.
    """

    method: ClassVar[str] = "surgery_v2"
    config: SurgeryV2Params | None

    def initialise(self, name: str, values: Tensor, generator: torch.Generator) -> None:
        """Draw D ~ U(−1/√fan_in, 1/√fan_in); U is 0."""
        if name.startswith("down"):
            uniform(values, kaiming_bound(values.shape[-1]), generator)

    def blocks_of(self, name: str) -> tuple[int, ...] | None:
        """Return all blocks, which have tensors each; None for those of the output, which act on the features."""
        return None if name.endswith("_output") else tuple(range(self.sizes["blocks"]))

    def target_width(self, sizes: Mapping[str, int]) -> int:
        """Return the width of a vector per block and the features."""
        return sizes["blocks"] * sizes["width"] + sizes["dim"]

    def prefix(self, tower: Tower, images: Float[Tensor, "n 3 h w"]) -> Prefix:
        """Return all tokens after the first block, before they are corrected."""
        return tower.noted(tower.run(tower.embed(images), 0, 1))

    def student(self, tower: Tower, prefix: Prefix, rows: slice) -> Float[Tensor, "stack batch aligned"]:
        """Return the aligned vectors of every block, then the features."""
        stack = len(range(*rows.indices(len(self.tasks))))
        (x,) = tower.resumed(prefix)
        aligned = []
        for number in range(len(tower.blocks)):
            x = x if number == 0 else tower.run(x, number, number + 1)
            x = _corrected(x, self.down[rows, number], self.up[rows, number])
            aligned.append(_statistic(tower, x, self.config))
        features = tower.read_out(x)
        aligned.append(_corrected(features, self.down_output[rows], self.up_output[rows]))
        return torch.cat(aligned, -1).view(stack, -1, self.target_width(self.sizes))

    @torch.no_grad()
    def teach(
        self, encoder: nn.Module, images: Float[Tensor, "n 3 h w"], config: SurgeryV2Params
    ) -> Float[Tensor, "n aligned"]:
        """Return the expert's aligned vectors of every block, then its features: shape (n, blocks·W + d).

        Args:
            encoder: the expert's.
            images: pre-processed.
            config: parameters that will be trained with.
        """
        with frozen(encoder):
            tower = tower_of(encoder)
            chunks = []
            for chunk in images.split(ENCODE_BATCH):
                x, aligned = tower.embed(chunk), []
                for number in range(len(tower.blocks)):
                    x = tower.run(x, number, number + 1)
                    aligned.append(_statistic(tower, x, config))
                chunks.append(torch.cat([*aligned, tower.read_out(x)], -1))
            return torch.cat(chunks)

    def losses(
        self, student: Float[Tensor, "stack batch aligned"], teacher: Float[Tensor, "stack batch aligned"]
    ) -> Float[Tensor, " stack"]:
        """Return the sum over blocks and the output of the mean distances."""
        parts = [*[self.sizes["width"]] * self.sizes["blocks"], self.sizes["dim"]]
        differences = (student - teacher).split(parts, -1)
        return torch.stack([distance(self.config.loss, difference) for difference in differences]).sum(0)


def _statistic(tower: Tower, x: Tensor, config: SurgeryV2Params) -> Tensor:
    return tower.mean(x) if config.statistic == "mean" else x[:, 0]


def _corrected(x: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """Return x − U ReLU(D x) with a module per row of the stack; x has stack · batch rows."""
    rows = x.reshape(len(down), -1, x.shape[-1])
    return (rows - torch.bmm(torch.bmm(rows, down.mT).relu(), up.mT)).view(x.shape)
