"""Two networks stitched together: the first parts of one, the remaining parts of the other."""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .base import Calibrator
from .deep import DeepCalibrator
from .tower import Tower, frozen


@dataclass(frozen=True)
class Network:
    """An encoder and, where it is repaired, the calibrator that belongs to it and the task whose module acts."""

    encoder: nn.Module
    calibrator: Calibrator | None = None
    task: str = ""


class StitchedTower(Tower):
    """A tower whose first parts are one encoder's and whose remaining parts are another's.

    Parts are the embedding, every block, and the read-out: blocks + 2 of them. ``cut`` of them are the first's.

    Raises:
        CalibrationError: an encoder is no vision transformer with a class token.
    """

    def __init__(self, first: nn.Module, second: nn.Module, cut: int) -> None:
        super().__init__(first if cut else second)
        left, right = Tower(first), Tower(second)
        at = min(max(cut - 1, 0), len(left.blocks))
        self.blocks = left.blocks[:at] + right.blocks[at:]
        self._end = left if cut == parts_of(left) else right

    def read_out(self, x: Float[Tensor, "n some width"]) -> Float[Tensor, "n dim"]:
        """Return the un-normalised features, by the read-out of the encoder that the last part is from."""
        return self._end.visual.ln_post(x[:, 0]) @ self._end.visual.proj


def parts_of(tower: Tower) -> int:
    """Count the parts that a tower can be cut into: the embedding, its blocks, the read-out."""
    return len(tower.blocks) + 2


@torch.no_grad()
def stitched_features(
    first: Network, second: Network, cut: int, batches: Iterable[Float[Tensor, "_ 3 h w"]]
) -> Float[Tensor, "n dim"]:
    """Return features of images through the first ``cut`` parts of one network and the remaining parts of the other.

    A calibrator acts only in the parts that its own network gives: inside the encoder in the blocks it has there, on
    the output only where the read-out is its network's.

    Args:
        first: gives the beginning.
        second: gives the rest; only one of the two may have a calibrator.
        cut: from 0 (all of it the second's) to blocks + 2 (all of it the first's).
        batches: pre-processed images.

    Returns:
        Float32, on the CPU.

    Raises:
        CalibrationError: encoders or calibrator that do not fit.

    Source: Osial et al., arXiv:2412.17023, §5 and Figure 5 (first blocks of the merged model, remaining layers of the
        task's own). Departure: embedding and read-out are parts of their own, and cutting the other way round is
        possible; neither is said there.
    """
    with frozen(first.encoder), frozen(second.encoder):
        tower = StitchedTower(first.encoder, second.encoder, cut)
        owner, own = (first, range(cut)) if first.calibrator is not None else (second, range(cut, parts_of(tower)))
        module, found = owner.calibrator, []
        inside = _inside(module, tower, own)
        outside = module if module is not None and inside is None and parts_of(tower) - 1 in own else None
        for images in batches:
            features = _walk(tower, images, inside, owner.task)
            found.append((features if outside is None else outside.correct(features, owner.task)).float().cpu())
    return torch.cat(found)


def _inside(module: Calibrator | None, tower: Tower, own: range) -> DeepCalibrator | None:
    """Return a calibrator of the encoder that acts in its network's parts only; None for others."""
    if not isinstance(module, DeepCalibrator):
        return None
    module.check_encoder(tower)
    blocks = [part - 1 for part in own if 1 <= part <= len(tower.blocks)]
    return module.acting_in(blocks, features=parts_of(tower) - 1 in own)


def _walk(tower: Tower, images: Tensor, inside: DeepCalibrator | None, task: str) -> Tensor:
    if inside is None:
        return tower.read_out(tower.run(tower.embed(images), 0, len(tower.blocks)))
    rows = slice(inside.row(task), inside.row(task) + 1)
    return inside.student(tower, inside.prefix(tower, images), rows)[0, :, -inside.sizes["dim"] :]
