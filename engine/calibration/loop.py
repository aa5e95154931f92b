"""The training loop that all calibrators share: losses, divergence, cancelling."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from .base import Calibrator
from .report import FitReport, Monitor
from .stack import Stack


def run_loop(
    module: Calibrator,
    stack: Stack,
    steps: int,
    update: Callable[[], Tensor],
    monitor: Monitor | None,
    monitor_every: int,
) -> FitReport:
    """Run updates in intervals; after each one look for divergence and ask the monitor.

    Args:
        module: the calibrator; its parameters are views of the stack.
        stack: the parameters.
        steps: updates per task.
        update: does one update of every task and returns the losses before it, shape (tasks,).
        monitor: asked after every interval and at the end, or None.
        monitor_every: updates in an interval, at least 1.

    Returns:
        The report. If a loss or a value is not finite, the state at the start of that interval is kept and
        ``diverged_at`` names the update.
    """
    began = time.perf_counter()
    curve: list[tuple[float | int, ...]] = []
    done, diverged_at, cancelled = 0, None, False
    while done < steps and not cancelled:
        good = stack.snapshot()
        losses = torch.stack([update() for _ in range(min(monitor_every, steps - done))])
        bad = first_bad_update(losses, stack)
        if bad is not None:
            stack.restore(good)
            diverged_at = done + bad
            break
        done += len(losses)
        means = losses.mean(0).tolist()
        curve.append((done, sum(means) / len(means), *means))
        if monitor is not None:
            cancelled = not monitor(done, dict(zip(module.tasks, means, strict=True)), module)
    return FitReport(
        tasks=module.tasks,
        steps=done,
        parameters=module.parameter_count(),
        seconds=time.perf_counter() - began,
        curve=tuple(curve),
        diverged_at=diverged_at,
        cancelled=cancelled and done < steps,
        warnings=_warnings(module, diverged_at, done),
    )


def first_bad_update(losses: Tensor, stack: Stack) -> int | None:
    """Return the number (from 1) of the first update in an interval that went wrong, or None.

    Args:
        losses: shape (updates, tasks).
        stack: the values after the interval; if they alone are not finite, the last update is named.
    """
    finite = torch.isfinite(losses).all(1)
    if not bool(finite.all()):
        return int(finite.logical_not().nonzero()[0, 0]) + 1
    return None if stack.is_finite() else len(losses)


def _warnings(module: Calibrator, diverged_at: int | None, done: int) -> tuple[str, ...]:
    if diverged_at is None:
        return ()
    return (
        f"Training of {module.method} diverged at update {diverged_at}; the state after update {done} is kept. "
        "Lower the learning rate.",
    )
