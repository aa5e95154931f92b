"""Calibrators of the encoder's output: trained on cached, paired features."""

# ruff: noqa: F722
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from ..catalog.calibrators import OutputParams
from ..errors import CalibrationError
from .base import Calibrator
from .loop import run_loop
from .losses import distance
from .report import FitReport, Monitor
from .sampling import EndlessBatches, check_pairs, generator_for, joined
from .stack import AdamInTurn, IndependentAdam, Stack

CHUNK = 64  # batches of row numbers drawn at once
MONITOR_EVERY = 100

Rows = slice


class OutputCalibrator(Calibrator):
    """Predicts the representation bias of a feature and subtracts it.

    Subclasses add the module (:meth:`predict`) and, where it is not the plain distance, its loss (:meth:`losses`).
    Gradients come from automatic differentiation; a subclass may write them out in :meth:`accumulate`, which is faster
    for small modules. The contract tests compare the two.
    """

    config: OutputParams | None

    @property
    def noise_draws(self) -> int:
        """Return how many standard normal draws the loss needs per feature value."""
        return 0

    @property
    def separate(self) -> bool:
        """Return whether every task's module learns by itself, so that tasks of several merges may train at once."""
        return not self.shared and self.config is not None and self.config.adam_semantics == "indep"

    @property
    def summed(self) -> bool:
        """Return whether an update of one shared module averages the tasks instead of visiting them in turn."""
        return False

    @abstractmethod
    def predict(self, z: Float[Tensor, "stack batch dim"], rows: Rows) -> Float[Tensor, "stack batch dim"]:
        """Return the bias predicted by the modules of some rows."""

    def losses(
        self,
        z: Float[Tensor, "stack batch dim"],
        target: Float[Tensor, "stack batch dim"],
        noise: Float[Tensor, "stack draws batch dim"] | None,
        rows: Rows,
    ) -> Float[Tensor, " stack"]:
        """Return each row's loss, by default the config's distance of the corrected to the expert features.

        Args:
            z: merged features.
            target: expert features of the same images.
            noise: standard normal draws, or None where :attr:`noise_draws` is 0.
            rows: the modules that are asked.
        """
        return distance(self.config.loss, z - self.predict(z, rows) - target)

    def accumulate(
        self,
        z: Float[Tensor, "stack batch dim"],
        target: Float[Tensor, "stack batch dim"],
        noise: Float[Tensor, "stack draws batch dim"] | None,
        rows: Rows,
    ) -> Float[Tensor, " stack"]:
        """Write the gradients of each row's loss into the parameters' ``grad`` and return the losses.

        Args:
            z: merged features.
            target: expert features of the same images.
            noise: standard normal draws, or None where :attr:`noise_draws` is 0.
            rows: the modules that are trained.
        """
        parameters = tuple(self.parameters())
        with torch.enable_grad():
            losses = self.losses(z, target, noise, rows)
            found = torch.autograd.grad(losses.sum(), parameters, materialize_grads=True)
        for parameter, gradient in zip(parameters, found, strict=True):
            parameter.grad[rows] = gradient[rows]
        return losses.detach()

    @torch.no_grad()
    def bias(self, z: Float[Tensor, "n dim"], task: str) -> Float[Tensor, "n dim"]:
        """Return the predicted representation bias, un-normalised feature units; zeros before fitting.

        Args:
            z: merged features.
            task: whose module predicts; ignored where one module serves all tasks.

        Raises:
            CalibrationError: not trained for this task.
        """
        if not self.built:
            return torch.zeros_like(z)
        row = self.row(task)
        return self.predict(self._cast(z)[None], slice(row, row + 1))[0]

    def correct(self, z: Float[Tensor, "n dim"], task: str) -> Float[Tensor, "n dim"]:
        """Return the corrected features z − bias; the input itself before fitting.

        Raises:
            CalibrationError: not trained for this task.
        """
        return self._cast(z) - self.bias(z, task) if self.built else z

    def fit(
        self,
        merged: Mapping[str, Float[Tensor, "_ dim"]],
        expert: Mapping[str, Float[Tensor, "_ dim"]],
        config: OutputParams,
        seed: int,
        monitor: Monitor | None = None,
        monitor_every: int = MONITOR_EVERY,
        drawn_as: Mapping[str, str] = MappingProxyType({}),
    ) -> FitReport:
        """Forget everything and train on paired features; tasks may differ in their number of images.

        All tasks train together; a task's result does not depend on which others are there (unless they share a
        module). float64 features train in float64, all others in float32, on the device they are on.

        Args:
            merged: task → features of the merged model, un-normalised.
            expert: task → features of the task's expert, of the same images in the same order.
            config: parameters of the catalog row.
            seed: start values, batches and noise.
            monitor: sees the state after every ``monitor_every`` updates and may cancel.
            monitor_every: updates in an interval.
            drawn_as: task → task whose start values, batches and noise it has, where several stand for the same one,
                such as one task of several merges.

        Raises:
            UnpairedFeatures: a task's two matrices differ in their number of rows.
            CalibrationError: a task without images, smaller than a batch, or with other unusable features.
        """
        check_pairs(merged, expert, config.batch_size)
        first = next(iter(merged.values()))
        dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
        stack = self.reset(tuple(merged), {"dim": first.shape[1]}, config, seed, dtype, first.device, drawn_as)
        feed = FeatureBatches(self, merged, expert, config.batch_size, seed, dtype, drawn_as)
        apply = update_rule(self, stack, config)
        report = run_loop(self, stack, config.steps, lambda: apply(*feed.next()), monitor, monitor_every)
        self.zero_grad(set_to_none=True)
        return report

    def _cast(self, z: Tensor) -> Tensor:
        parameter = next(self.parameters())
        if z.shape[-1] != self.sizes["dim"]:
            raise CalibrationError(
                f"{self.method} was trained on features of width {self.sizes['dim']}; these have {z.shape[-1]}."
            )
        return z.detach().to(parameter.device, parameter.dtype)


class FeatureBatches:
    """Batches of every task side by side: features (tasks, batch, dim) and noise (tasks, draws, batch, dim)."""

    def __init__(
        self,
        module: OutputCalibrator,
        merged: Mapping[str, Tensor],
        expert: Mapping[str, Tensor],
        batch: int,
        seed: int,
        dtype: torch.dtype,
        drawn_as: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        tasks = module.tasks
        names = [drawn_as.get(task, task) for task in tasks]
        self._merged, starts = joined(merged, tasks, dtype)
        self._expert, _ = joined(expert, tasks, dtype)
        self._starts = starts[:, None]
        streams = [(name, len(merged[task])) for task, name in zip(tasks, names, strict=True)]
        alike = list(dict.fromkeys(streams))  # tasks that stand for the same one are drawn for once
        self._batches = [EndlessBatches(rows, batch, generator_for(seed, name, "batches")) for name, rows in alike]
        self._drawn = torch.tensor([alike.index(stream) for stream in streams])
        device = self._merged.device
        self._noise = {names.index(name): generator_for(seed, name, "noise", device) for name in names}
        self._noise_of = [names.index(name) for name in names]
        shape = (len(tasks), module.noise_draws, batch, self._merged.shape[1])
        self._buffer = torch.empty(shape, dtype=dtype, device=device) if module.noise_draws else None
        self._shape = (len(tasks), batch, self._merged.shape[1])
        self._numbers = torch.empty(0)
        self._at = 0

    def next(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the next batch of every task: merged, expert, noise (reused: read it before asking again)."""
        if self._at == len(self._numbers):
            chunk = torch.stack([b.take(CHUNK) for b in self._batches], 1)[:, self._drawn]
            self._numbers = (chunk + self._starts).flatten(1).to(self._merged.device)
            self._at = 0
        numbers = self._numbers[self._at]
        self._at += 1
        if self._buffer is not None:
            for row, first in enumerate(self._noise_of):
                if row == first:
                    self._buffer[row].normal_(generator=self._noise[row])
                else:
                    self._buffer[row].copy_(self._buffer[first])
        z = self._merged.index_select(0, numbers).view(self._shape)
        return z, self._expert.index_select(0, numbers).view(self._shape), self._buffer


def update_rule(
    module: OutputCalibrator, stack: Stack, config: OutputParams
) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """Return the function that moves the modules by one batch of every task.

    Returns:
        A function of (z, target, noise), each with a leading task axis, that updates the stack and returns the
        losses (tasks,): all modules at once; or, with one shared module or a shared Adam, task after task; or, with
        one shared module and ``summed``, by the mean over tasks.
    """
    if module.separate:
        adam = IndependentAdam(stack, config.learning_rate)

        def together(z: Tensor, target: Tensor, noise: Tensor | None) -> Tensor:
            losses = module.accumulate(z, target, noise, slice(None))
            adam.step()
            return losses

        return together
    if module.shared and module.summed:
        return _averaged(module, stack, config)
    return _in_turn(module, stack, config)


def _in_turn(module: OutputCalibrator, stack: Stack, config: OutputParams) -> Callable[..., Tensor]:
    """Return an update with one Adam step per task, in the tasks' order."""
    alone = IndependentAdam(stack, config.learning_rate) if module.shared else None
    drifting = None if module.shared else AdamInTurn(stack, config.learning_rate, drifting=True)

    def update(z: Tensor, target: Tensor, noise: Tensor | None) -> Tensor:
        losses = []
        for task in range(len(z)):
            one = slice(task, task + 1)
            rows = slice(0, 1) if module.shared else one
            losses.append(module.accumulate(z[one], target[one], None if noise is None else noise[one], rows))
            if alone is not None:
                alone.step()
            if drifting is not None:
                drifting.step(task)
        return torch.cat(losses)

    return update


def _averaged(module: OutputCalibrator, stack: Stack, config: OutputParams) -> Callable[..., Tensor]:
    """Return an update with one Adam step of the shared module on the mean of the tasks' losses."""
    adam = IndependentAdam(stack, config.learning_rate)
    total = torch.zeros_like(stack.gradients)

    def update(z: Tensor, target: Tensor, noise: Tensor | None) -> Tensor:
        losses = []
        total.zero_()
        for task in range(len(z)):
            one = slice(task, task + 1)
            losses.append(module.accumulate(z[one], target[one], None if noise is None else noise[one], slice(0, 1)))
            total.add_(stack.gradients, alpha=1.0 / len(z))
        stack.gradients.copy_(total)
        adam.step()
        return torch.cat(losses)

    return update
