"""The report that fitting a calibrator leaves behind, and the monitor that may watch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import nn


@runtime_checkable
class Monitor(Protocol):
    """Looks at a calibrator while it is trained."""

    def __call__(self, step: int, loss: Mapping[str, float], module: nn.Module) -> bool:
        """See the state after ``step`` updates of every task.

        Args:
            step: updates done, counted per task.
            loss: task → mean training loss since the last call.
            module: the calibrator; its ``bias`` and ``correct`` use the current parameters. Not to be changed.

        Returns:
            False to stop here (cancel); True to go on.
        """


@dataclass(frozen=True)
class FitReport:
    """Course and outcome of a fit.

    ``curve`` has one row per monitored interval: updates done, mean loss over tasks, then the loss of each task in
    the order of ``tasks``; every loss is the mean over the interval. ``diverged_at`` is the first update whose loss
    (or result) was not finite, else None; the calibrator then holds the last finite state before that interval.
    ``cancelled`` says that the monitor returned False.
    """

    tasks: tuple[str, ...]
    steps: int
    parameters: int
    seconds: float
    curve: tuple[tuple[float | int, ...], ...] = ()
    diverged_at: int | None = None
    cancelled: bool = False
    warnings: tuple[str, ...] = field(default=())
