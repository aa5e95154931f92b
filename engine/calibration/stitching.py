"""Two networks stitched together: the first parts of one, the remaining parts of the other."""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..features.blocks import Followed
from ..features.parts import transplanted, whole_parts
from ..layouts import OPEN_CLIP, Layout
from .base import Calibrator
from .deep import DeepCalibrator
from .text_tower import tower_of
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
        self._end = left if cut == len(left.blocks) + 2 else right

    def read_out(self, x: Float[Tensor, "n some width"]) -> Float[Tensor, "n dim"]:
        """Return the un-normalised features, by the read-out of the encoder that the last part is from."""
        return self._end.visual.ln_post(x[:, 0]) @ self._end.visual.proj


def parts_of(encoder: nn.Module) -> int:
    """Count the parts that an encoder can be cut into: the embedding, its blocks, the read-out.

    Raises:
        CalibrationError: its blocks cannot be followed.
    """
    return len(encoder.stations if isinstance(encoder, Followed) else Tower(encoder).blocks) + 2


@torch.no_grad()
def stitched_features(
    first: Network, second: Network, cut: int, batches: Iterable[Tensor], layout: Layout = OPEN_CLIP
) -> Float[Tensor, "n dim"]:
    """Return features of samples through the first ``cut`` parts of one network and the remaining parts of the other.

    A calibrator acts only in the parts that its own network gives: inside the encoder in the blocks it has there, on
    the output only where the read-out is its network's.

    Args:
        first: gives the beginning.
        second: gives the rest; only one of the two may have a calibrator.
        cut: from 0 (all of it the second's) to blocks + 2 (all of it the first's).
        batches: prepared images, or texts.
        layout: how the parameters of an encoder of texts are named.

    Returns:
        Float32, on the CPU.

    Raises:
        CalibrationError: encoders or calibrator that do not fit.

    Source: Osial et al., arXiv:2412.17023, §5 and Figure 5 (first blocks of the merged model, remaining layers of the
        task's own). Departure: embedding and read-out are parts of their own, and cutting the other way round is
        possible; neither is said there.
    """
    parts, found = parts_of(second.encoder), []
    owner, own = (first, range(cut)) if first.calibrator is not None else (second, range(cut, parts))
    with ExitStack() as stack:
        stack.enter_context(frozen(first.encoder))
        stack.enter_context(frozen(second.encoder))
        if isinstance(second.encoder, Followed):
            tower = tower_of(second.encoder)
            given = [name for names in whole_parts(second.encoder, layout)[:cut] for name in names]
            stack.enter_context(transplanted(second.encoder, first.encoder, given))
        else:
            tower = StitchedTower(first.encoder, second.encoder, cut)
        inside = _inside(owner.calibrator, tower, own)
        walk: Callable[[Tensor], Tensor] = partial(_walk, tower, inside=inside, task=owner.task)
        outside = owner.calibrator if inside is None and parts - 1 in own else None
        for samples in batches:
            features = walk(samples)
            found.append((features if outside is None else outside.correct(features, owner.task)).float().cpu())
    return torch.cat(found)


def _inside(module: Calibrator | None, tower: Tower, own: range) -> DeepCalibrator | None:
    """Return a calibrator of the encoder that acts in its network's parts only; None for others."""
    if not isinstance(module, DeepCalibrator):
        return None
    module.check_encoder(tower)
    blocks = [part - 1 for part in own if 1 <= part <= len(tower.blocks)]
    return module.acting_in(blocks, features=len(tower.blocks) + 1 in own)


def _walk(tower: Tower, images: Tensor, inside: DeepCalibrator | None, task: str) -> Tensor:
    if inside is None:
        return tower.read_out(tower.run(tower.embed(images), 0, len(tower.blocks)))
    rows = slice(inside.row(task), inside.row(task) + 1)
    return inside.student(tower, inside.prefix(tower, images), rows)[0, :, -inside.sizes["dim"] :]
