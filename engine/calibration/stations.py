"""Outputs of an encoder's blocks, with a deep calibrator inside it or without."""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..features.blocks import Followed, followed
from .deep import DeepCalibrator
from .text_tower import TextTower
from .tower import Tower, frozen

STATISTICS = ("class", "mean")


class _Noting:
    """Notes what leaves every block of a tower: its class token and the mean over its tokens.

    A block's output is what the next block (or the read-out) is given, so that changes made in between count. The mean
    is NaN where only the class token went on.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__(encoder)
        self.noticed: dict[int, dict[str, Tensor]] = {}

    def attend(self, number: int, x: Tensor, class_only: bool = False) -> Tensor:
        """Return the output of a block's attention, and record the tokens that enter the block."""
        if number:
            self._note(number - 1, x)
        return super().attend(number, x, class_only)

    def read_out(self, x: Tensor) -> Tensor:
        """Return the features, and record what left the last block."""
        self._note(len(self.blocks) - 1, x)
        return super().read_out(x)

    def _note(self, block: int, x: Tensor) -> None:
        mean = self.mean(x) if x.shape[1] > 1 else torch.full_like(x[:, 0], torch.nan)
        self.noticed[block] = {"class": x[:, 0].float().cpu(), "mean": mean.float().cpu()}


class Stations(_Noting, Tower):
    """A tower that notes what leaves every block."""


class TextStations(_Noting, TextTower):
    """The same of an encoder of texts."""


@torch.no_grad()
def block_outputs(
    encoder: nn.Module,
    batches: Iterable[Tensor],
    calibrator: DeepCalibrator | None = None,
    task: str = "",
) -> dict[str, Tensor]:
    """Return one vector a sample after every block; n · blocks · width numbers for each statistic are kept.

    Args:
        encoder: left as it was found.
        batches: prepared images, or texts.
        calibrator: acts inside the encoder.
        task: whose modules act.

    Returns:
        ``class`` and ``mean`` of shape (blocks, n, width), and ``features`` (n, dim), float32 on the CPU.

    Raises:
        CalibrationError: the encoder's blocks cannot be followed, or are not the calibrator's.
    """
    found: dict[str, list[Tensor]] = {"class": [], "mean": [], "features": []}
    with frozen(encoder):
        if calibrator is None and isinstance(encoder, Followed):
            return followed(encoder, batches)
        tower = TextStations(encoder) if isinstance(encoder, Followed) else Stations(encoder)
        if calibrator is not None:
            calibrator.check_encoder(tower)
            rows = slice(calibrator.row(task), calibrator.row(task) + 1)
        for images in batches:
            if calibrator is None:
                features = tower.read_out(tower.run(tower.embed(images), 0, len(tower.blocks)))
            else:
                aligned = calibrator.student(tower, calibrator.prefix(tower, images), rows)
                features = aligned[0, :, -calibrator.sizes["dim"] :]
            for name in STATISTICS:
                found[name].append(torch.stack([tower.noticed[block][name] for block in range(len(tower.blocks))]))
            found["features"].append(features.float().cpu())
    return {name: torch.cat(parts, dim=-2) for name, parts in found.items()}


@torch.no_grad()
def lens(encoder: nn.Module, tokens: Float[Tensor, "blocks n width"]) -> Float[Tensor, "blocks n dim"]:
    """Return what the read-out would make of each block's class token, as if that block were the last.

    Args:
        encoder: whose read-out is used: final norm and projection, or BERT's pooler.
        tokens: what leaves each block.

    Returns:
        Un-normalised features, float32 on the CPU.

    Source: nostalgebraist, Interpreting GPT: the logit lens, 2020.
    """
    if isinstance(encoder, Followed):
        weight = next(encoder.parameters())
        return torch.stack([encoder.read_out(block.to(weight)).float().cpu() for block in tokens])
    tower = Tower(encoder)
    given = tokens.to(tower.weight.device, tower.weight.dtype)
    return torch.stack([tower.read_out(block[:, None]).float().cpu() for block in given])
