"""Calibrators that act inside the encoder: their modules, and the features of an encoder with them inside."""

# ruff: noqa: F722
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..catalog.deep_calibrators import DeepParams
from ..errors import CalibrationError
from .base import Calibrator
from .text_tower import tower_of
from .tower import Tower, frozen

ENCODE_BATCH = 256

Prefix = tuple[Tensor, ...]


class DeepCalibrator(Calibrator):
    """Changes activations inside a frozen, merged transformer.

    Subclasses say what the untouched part of the encoder leaves (:meth:`prefix`), how the rest runs with the modules
    (:meth:`student`) and what is aligned with the expert (:meth:`teach`, :meth:`losses`);
    :func:`.deep_training.fit_deep` trains them.
    """

    deep = True
    config: DeepParams | None

    @abstractmethod
    def prefix(self, tower: Tower, images: Float[Tensor, "n 3 h w"]) -> Prefix:
        """Return activations that no module has changed yet, as the tower ``noted`` them; each tensor has n rows."""

    @abstractmethod
    def student(self, tower: Tower, prefix: Prefix, rows: slice) -> Float[Tensor, "stack batch aligned"]:
        """Run the rest of the encoder with the modules of some rows.

        Args:
            tower: the encoder.
            prefix: of stack · batch images, row after row of the stack.
            rows: which modules.

        Returns:
            What is aligned; its last ``dim`` columns are the features.
        """

    @abstractmethod
    def losses(
        self, student: Float[Tensor, "stack batch aligned"], teacher: Float[Tensor, "stack batch aligned"]
    ) -> Float[Tensor, " stack"]:
        """Return the loss of every row."""

    @abstractmethod
    def blocks_of(self, name: str) -> tuple[int, ...] | None:
        """Return the blocks that the second axis of a tensor counts; None for a tensor that acts on the features."""

    def acting_in(self, blocks: Collection[int], *, features: bool = True) -> DeepCalibrator:
        """Return a copy of which only the modules of some blocks act (and the features' own, where there is one).

        A module of zeros changes nothing, whatever its function.
        """
        part = deepcopy(self)
        with torch.no_grad():
            for name, values in part.named_parameters():
                counted = part.blocks_of(name)
                if counted is None:
                    values.mul_(float(features))
                else:
                    values[:, [place for place, block in enumerate(counted) if block not in blocks]] = 0
        return part

    def target_width(self, sizes: Mapping[str, int]) -> int:
        """Return the number of columns of :meth:`teach`."""
        return sizes["dim"]

    @property
    def updates_per_gradient(self) -> int:
        """Return the number of updates of a module with one gradient."""
        return 1

    def before_update(self) -> None:
        """Take gradients away from what is not to be trained; nothing unless a subclass needs it."""

    def after_update(self) -> None:
        """Bring parameters back where they must be after an update; nothing unless a subclass needs it."""

    @torch.no_grad()
    def teach(
        self, encoder: nn.Module, images: Float[Tensor, "n 3 h w"], config: DeepParams
    ) -> Float[Tensor, "n aligned"]:
        """Return what ``fit_deep`` aligns with: the plain features of a task's expert.

        Args:
            encoder: the expert's.
            images: pre-processed.
            config: parameters that will be trained with.
        """
        with frozen(encoder):
            tower = tower_of(encoder)
            return torch.cat([plain_features(tower, chunk) for chunk in images.split(ENCODE_BATCH)])

    def correct(self, z: Float[Tensor, "n dim"], task: str) -> Float[Tensor, "n dim"]:
        """Refuse to correct features alone.

        Raises:
            CalibrationError: always.
        """
        raise CalibrationError(
            f"{self.method} acts inside the encoder, so features alone cannot be corrected. "
            "Use `correct_features(encoder, images, task)`."
        )

    @torch.no_grad()
    def correct_features(
        self, encoder: nn.Module, images: Float[Tensor, "n 3 h w"], task: str
    ) -> Float[Tensor, "n dim"]:
        """Return features of images through the merged encoder with the task's modules; plain features before fitting.

        Args:
            encoder: the merged model's; left as it was.
            images: pre-processed.
            task: whose modules act.

        Raises:
            CalibrationError: not trained for this task, or not an encoder this calibrator can act in.
        """
        with frozen(encoder):
            tower = tower_of(encoder)
            if not self.built:
                return torch.cat([plain_features(tower, chunk) for chunk in images.split(ENCODE_BATCH)])
            self.check_encoder(tower)
            rows = slice(self.row(task), self.row(task) + 1)
            chunks = images.split(ENCODE_BATCH)
            return torch.cat(
                [self.student(tower, self.prefix(tower, c), rows)[0, :, -self.sizes["dim"] :] for c in chunks]
            )

    def check_encoder(self, tower: Tower) -> None:
        """Refuse an encoder of other sizes than the one that was trained in."""
        found = tower.sizes()
        own = {name: size for name, size in self.sizes.items() if name in found}
        if found != own:
            raise CalibrationError(f"{self.method} was trained inside an encoder of {own}; this one has {found}.")


def plain_features(tower: Tower, images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n dim"]:
    """Return an encoder's features as they are: all blocks, then the read-out."""
    return tower.read_out(tower.run(tower.embed(images), 0, len(tower.blocks)))
