"""Calibrators that act inside the encoder: trained on images, with everything before them cached."""

# ruff: noqa: F722
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..catalog.calibrators import DeepParams
from ..errors import CalibrationError
from .base import Calibrator
from .coefficients import JointStudent, LinearMerge
from .deep_updates import ENCODE_BATCH, Feed, Prefix, deep_update
from .loop import run_loop
from .report import FitReport, Monitor
from .sampling import check_pairs, check_rows
from .stack import Stack
from .tower import Tower, dtype_of, frozen

MONITOR_EVERY = 25
CACHE_BYTES = 2 * 2**30
CPU_IMAGES = 32  # images a CPU takes through the encoder at once: activations stay in its cache


class DeepCalibrator(Calibrator):
    """Changes activations inside a frozen, merged vision transformer.

    Subclasses say what the untouched part of the encoder leaves (:meth:`prefix`), how the rest runs with the modules
    (:meth:`student`) and what is aligned with the expert (:meth:`teach`, :meth:`losses`).
    """

    deep = True
    config: DeepParams | None

    @abstractmethod
    def prefix(self, tower: Tower, images: Float[Tensor, "n 3 h w"]) -> Prefix:
        """Activations that no module has changed yet; each tensor has n rows."""

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
        """Loss of every row."""

    @abstractmethod
    def blocks_of(self, name: str) -> tuple[int, ...] | None:
        """Blocks that the second axis of a tensor counts; None for a tensor that acts on the features."""

    def acting_in(self, blocks: Collection[int], *, features: bool = True) -> DeepCalibrator:
        """A copy of which only the modules of some blocks act (and the features' own, where there is one).

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
        """Columns of what :meth:`teach` returns."""
        return sizes["dim"]

    @property
    def updates_per_gradient(self) -> int:
        """How often a module is updated with one gradient."""
        return 1

    def before_update(self) -> None:
        """Take gradients away from what is not to be trained; nothing unless a subclass needs it."""

    def after_update(self) -> None:
        """Bring parameters back where they must be after an update; nothing unless a subclass needs it."""

    @torch.no_grad()
    def teach(
        self, encoder: nn.Module, images: Float[Tensor, "n 3 h w"], config: DeepParams
    ) -> Float[Tensor, "n aligned"]:
        """What ``fit_deep`` needs from a task's expert: its plain features.

        Args:
            encoder: the expert's.
            images: pre-processed.
            config: parameters that will be trained with.
        """
        with frozen(encoder):
            tower = Tower(encoder)
            return torch.cat([_features(tower, chunk) for chunk in images.split(ENCODE_BATCH)])

    def correct(self, z: Float[Tensor, "n dim"], task: str) -> Float[Tensor, "n dim"]:
        """There is no correcting of features alone.

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
        """Features of images through the merged encoder with the task's modules; its plain features before fitting.

        Args:
            encoder: the merged model's; left as it was.
            images: pre-processed.
            task: whose modules act.

        Raises:
            CalibrationError: not trained for this task, or not an encoder this calibrator can act in.
        """
        with frozen(encoder):
            tower = Tower(encoder)
            if not self.built:
                return torch.cat([_features(tower, chunk) for chunk in images.split(ENCODE_BATCH)])
            self.check_encoder(tower)
            rows = slice(self.row(task), self.row(task) + 1)
            chunks = images.split(ENCODE_BATCH)
            return torch.cat(
                [self.student(tower, self.prefix(tower, c), rows)[0, :, -self.sizes["dim"] :] for c in chunks]
            )

    def fit_deep(
        self,
        encoder: nn.Module,
        images: Mapping[str, Float[Tensor, "_ 3 h w"]],
        expert_features: Mapping[str, Float[Tensor, "_ aligned"]],
        config: DeepParams,
        seed: int,
        monitor: Monitor | None = None,
        monitor_every: int = MONITOR_EVERY,
        cache_bytes: int = CACHE_BYTES,
        merge: LinearMerge | None = None,
    ) -> FitReport:
        """Forget everything and train inside a merged encoder; all tasks train together, each with its own Adam.

        Args:
            encoder: the merged model's; frozen meanwhile and left as it was.
            images: task → pre-processed images; tasks may differ in number.
            expert_features: task → what :meth:`teach` gives for the task's expert on these images, in their order
                (for IntervMerge the expert's plain features).
            config: parameters of the catalog row.
            seed: start values and batches.
            monitor: sees the state after every ``monitor_every`` updates and may cancel.
            monitor_every: updates in an interval.
            cache_bytes: how much may be held of what the encoder computes before the first module; more than that is
                computed again for every batch.
            merge: where merging coefficients learn as well; the encoder then gives the structure only, and
                :meth:`merged_weights` the model that the calibrator has to act in.

        Raises:
            UnpairedFeatures: a task's images and expert features differ in number.
            CalibrationError: a task without images or smaller than a batch; an unusable encoder or teacher.
        """
        with frozen(encoder):
            tower = Tower(encoder)
            for task in images:
                check_rows(task, len(images[task]), len(expert_features.get(task, ())), config.batch_size)
            check_pairs(expert_features, expert_features, config.batch_size)
            tasks = tuple(images)
            stack = self.reset(tasks, tower.sizes(), config, seed, dtype_of(tower), tower.weight.device)
            self._check_teacher(expert_features)
            student = self.join(tower, merge, stack)
            cache_bytes = cache_bytes if student is None else 0
            feed = Feed(self, tower, images, expert_features, config.batch_size, seed, cache_bytes, student is not None)
            update = deep_update(self, tower, stack, feed, student)
            report = run_loop(self, stack, config.steps, update, monitor, monitor_every)
        self.zero_grad(set_to_none=True)
        return report

    def join(self, tower: Tower, merge: LinearMerge | None, stack: Stack) -> JointStudent | None:
        """What learns together with merging coefficients; nothing unless a subclass has them."""
        if merge is not None:
            raise CalibrationError(f"{self.method} does not learn merging coefficients.")
        return None

    @torch.enable_grad()
    def backward(
        self, tower: Tower, prefix: Prefix, teacher: Float[Tensor, "stack batch aligned"], first: int = 0
    ) -> Float[Tensor, " stack"]:
        """Add every task's gradients, a few tasks at a time on a CPU (modules are independent), and give the losses.

        Args:
            tower: the encoder.
            prefix: of stack · batch images.
            teacher: what is aligned with.
            first: row of the first task.
        """
        tasks, batch = teacher.shape[:2]
        together = max(1, CPU_IMAGES // batch) if teacher.device.type == "cpu" else tasks
        losses = []
        for start in range(0, tasks, together):
            stop = min(start + together, tasks)
            part = tuple(tensor[start * batch : stop * batch] for tensor in prefix)
            loss = self.losses(self.student(tower, part, slice(first + start, first + stop)), teacher[start:stop])
            loss.sum().backward()
            losses.append(loss.detach())
        return torch.cat(losses)

    def _check_teacher(self, expert_features: Mapping[str, Tensor]) -> None:
        width = self.target_width(self.sizes)
        for task, features in expert_features.items():
            if features.shape[1] != width:
                raise CalibrationError(
                    f"{self.method} needs {width} columns from the expert of '{task}', found {features.shape[1]}. "
                    "Compute them with its `teach` method and the expert's encoder."
                )

    def check_encoder(self, tower: Tower) -> None:
        """Refuse an encoder of other sizes than the one that was trained in."""
        found = tower.sizes()
        own = {name: size for name, size in self.sizes.items() if name in found}
        if found != own:
            raise CalibrationError(f"{self.method} was trained inside an encoder of {own}; this one has {found}.")


def _features(tower: Tower, images: Tensor) -> Tensor:
    """Plain features: all blocks, then the read-out."""
    return tower.read_out(tower.run(tower.embed(images), 0, len(tower.blocks)))
