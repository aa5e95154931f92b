"""Carries steps out: one step with its claim, or a whole plan in this process (the command line)."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Cancelled, DiskFull, EngineError, StoreError
from .graph import Plan
from .steps import Step, located
from .tools import Monitor, Silent, StepTools

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..store import Store

WAIT = 0.1  # seconds between two looks at a step that another process computes
ROOM_WAIT = 1.0  # seconds between two looks at a full disk


class MissingInput(StoreError):
    """An artefact that a step reads is not in the store (any more)."""

    def __init__(self, key: str, label: str) -> None:
        super().__init__(f"'{label}' reads artefact {key[:12]}…, which is not in the store. Run again what makes it.")
        self.key = key


def run_step(store: Store, step: Step, tools: StepTools, *, owner: str | None = None) -> Path:
    """Make sure that a step's artefact exists; compute it unless it is there or another process is at it.

    Args:
        store: where artefacts are.
        step: what to compute.
        tools: device, threads and monitor for the step.
        owner: name of this process in the claim table.

    Returns:
        The artefact's folder.

    Raises:
        Cancelled: the monitor says so.
        MissingInput: an input is not in the store.
        EngineError: the step's own reason.
    """
    owner = owner or _this_process()
    while True:
        found = store.find(step.key)
        if found is not None:
            return found
        if store.claims.take(step.key, owner):
            break
        tools.monitor.progress(0.0, "Another process computes this step")
        tools.check()
        time.sleep(WAIT)
    with store.claims.kept(step.key, owner):
        return store.find(step.key) or _compute_when_there_is_room(store, step, tools)


def run_inline(
    plan: Plan,
    store: Store,
    monitor: Monitor | None = None,
    *,
    device: str | None = None,
    made: Callable[[Plan], None] | None = None,
) -> Path:
    """Carry a whole plan out in this process.

    Args:
        plan: the graph.
        store: where artefacts go.
        monitor: gets the plan's progress (0 to 1 over all steps), metrics and log; may cancel.
        device: ``cpu``, ``cuda`` or ``mps``; default what is there, for steps that want an accelerator.
        made: called with the plan before its first step and after every step that makes a part of it; with another
            plan when the given one goes on without steps that failed.

    Returns:
        Folder of the result.
    """
    listener = monitor or Silent()
    if told := kept_metrics(plan, store):
        listener.metrics(told)
    while True:
        failed = _run_needed(plan, store, listener, device, made or (lambda plan: None))
        if failed is None:
            break
        step, error = failed
        rest = plan.without_failed(step.key, explain_failure(error, step)[0])
        if rest is None:
            raise error
        listener.log(f"Going on without what needs '{step.label}': {error}")
        plan = rest
    found = store.find(plan.result)
    if found is None:
        raise StoreError("The result could not be read back after it was written. Is the disk full?")
    return found


def _run_needed(
    plan: Plan, store: Store, listener: Monitor, device: str | None, made: Callable[[Plan], None]
) -> tuple[Step, Exception] | None:
    """Compute what is missing; returns the step that failed and why, where the plan may go on without it."""
    needed = needed_steps(plan, store)
    progress = PlanProgress(plan, {step.key for step in needed})
    parts = {part.key for part in plan.parts}
    made(plan)
    for step in needed:
        share = _Share(listener, progress, step)
        share.progress(0.0, "")
        threads = set_threads(step.threads or default_threads())
        tools = StepTools(store, share, key=step.key, device=device or device_for(step), threads=threads)
        tools.check()
        try:
            run_step(store, step, tools)
        except Cancelled:
            raise
        except Exception as error:
            if plan.without is None:
                raise
            return step, error
        share.progress(1.0, "")
        if step.key in parts:
            made(plan)
    return None


def needed_steps(plan: Plan, store: Store) -> list[Step]:
    """Return the steps that have to be computed, in order: those whose artefact is missing and needed."""
    table = plan.by_key()
    wanted: dict[str, bool] = {}
    stack = list(plan.sinks())
    while stack:
        key = stack.pop()
        if key in wanted or key not in table:
            continue
        wanted[key] = store.find(key) is None
        if wanted[key]:
            stack.extend(table[key].needs)
    return [step for key, step in table.items() if wanted.get(key)]


def kept_metrics(plan: Plan, store: Store) -> dict[str, Any]:
    """Return the live metrics that a plan begins with: those that its steps told when an earlier run computed them."""
    told: dict[str, Any] = {}
    for step in plan.steps:
        metric, file = step.kind.retold or ("", "")
        folder = store.find(step.key, checksums=False) if metric and metric not in told else None
        if folder is not None:
            with suppress(OSError, ValueError):  # collected at this very moment
                told[metric] = json.loads((folder / file).read_text("utf-8"))
    return told


class PlanProgress:
    """Progress of a plan: weights of finished steps plus the running ones' shares, of the steps to compute."""

    def __init__(self, plan: Plan, needed: set[str], seconds: Mapping[str, float] | None = None) -> None:
        """Weigh the steps of a plan.

        Args:
            plan: whose progress it is.
            needed: keys of the steps to compute.
            seconds: name of a kind of step → how long the last one took here; others are weighed by their cost.
        """
        known = seconds or {}
        pairs = [(known[step.name], step.cost) for step in plan.steps if step.name in known and step.cost > 0]
        each = sum(second for second, _ in pairs) / sum(cost for _, cost in pairs) if pairs else 1.0
        self.weights = {step.key: max(known.get(step.name, step.cost * each), 0.0) for step in plan.steps}
        self.done = {key: float(key not in needed) for key in self.weights}
        self.needed = needed

    @property
    def fraction(self) -> float:
        """Return the share that is done, 0 to 1."""
        total = sum(self.weights.get(key, 0.0) for key in self.needed)
        done = sum(self.weights[key] * part for key, part in self.done.items() if key in self.needed)
        return min(done / total, 1.0) if total else 1.0

    @property
    def number(self) -> int:
        """Return the number of the step at work among those to compute, from 1."""
        return min(sum(self.done[key] >= 1 for key in self.needed) + 1, max(len(self.needed), 1))

    @property
    def count(self) -> int:
        """Return the number of steps to compute."""
        return len(self.needed)


class _Share:
    """Turns one step's progress into the plan's."""

    def __init__(self, monitor: Monitor, progress: PlanProgress, step: Step) -> None:
        self._monitor, self._progress, self._step = monitor, progress, step

    def progress(self, fraction: float, message: str) -> None:
        self._progress.done[self._step.key] = fraction
        place = f"{self._progress.number}/{self._progress.count} {self._step.label or self._step.name}"
        self._monitor.progress(self._progress.fraction, f"{place}: {message}" if message else place)

    def metrics(self, values: Mapping[str, Any]) -> None:
        self._monitor.metrics(values)

    def log(self, line: str) -> None:
        self._monitor.log(line)

    def cancelled(self) -> bool:
        return self._monitor.cancelled()


def explain_failure(error: BaseException, step: Step) -> tuple[str, str, str]:
    """Return the message for people, kind and traceback of what went wrong in a step.

    Returns:
        The message of an ``EngineError`` as it is; of anything else where it happened and what it was.
    """
    kind = type(error).__name__
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, EngineError):
        return str(error), kind, trace
    if isinstance(error, MemoryError) or kind == "OutOfMemoryError":
        return f"Step '{step.label}' ran out of memory: {error or kind}.", kind, trace
    return f"Unexpected error in step '{step.label}': {kind}: {error}", kind, trace


def device_for(step: Step) -> str:
    """Return the device that a step computes on in this process."""
    if not step.gpu:
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def default_threads() -> int:
    """Return the numeric threads of a step that has this process to itself: ``MERGELENS_THREADS``, else every core."""
    wanted = os.environ.get("MERGELENS_THREADS", "")
    return int(wanted) if wanted.isdigit() and int(wanted) > 0 else os.cpu_count() or 1


def set_threads(count: int) -> int:
    """Set the numeric threads of this process; libraries that are not imported yet read the environment."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, str(os.cpu_count() or 1))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)
    if "threadpoolctl" in sys.modules:
        _thread_pools(len(sys.modules)).limit(limits=count)
    return count


@lru_cache(maxsize=1)
def _thread_pools(modules: int) -> Any:
    """Find the libraries with thread pools of their own; looked for again when more modules are imported."""
    return sys.modules["threadpoolctl"].ThreadpoolController()


def _compute_when_there_is_room(store: Store, step: Step, tools: StepTools) -> Path:
    """Compute a step; while the disk is full, say so, wait, and begin again when there is room."""
    while True:
        try:
            return _compute(store, step, tools)
        except DiskFull as error:
            tools.monitor.log(str(error))
            needed = error.needed
        while not store.has_room(needed):
            free, wanted = store.free_bytes() / 1e6, needed / 1e6
            tools.monitor.progress(
                0.0, f"Paused: the disk has {free:,.0f} MB free, at least {wanted:,.0f} MB are needed"
            )
            tools.check()
            time.sleep(ROOM_WAIT)


def _compute(store: Store, step: Step, tools: StepTools) -> Path:
    inputs = located(step.inputs, lambda key: _folder(store, key, step))
    facts = {"step": step.name, "version": step.version, "label": step.label, "inputs": step.needs}
    with store.create(step.key, **facts, uses=tools.uses) as output:
        step.kind(inputs, step.params, output, tools)
        if tools.monitor.cancelled():
            raise Cancelled("Cancelled.")
    found = store.find(step.key)
    if found is None:
        raise StoreError(
            f"The artefact of '{step.label}' could not be read back after it was written. Is the disk full?"
        )
    return found


def _folder(store: Store, key: str, step: Step) -> Path:
    found = store.find(key)
    if found is None:
        raise MissingInput(key, step.label)
    return found


def _this_process() -> str:
    from ..store.owners import this_process

    return this_process("step")
