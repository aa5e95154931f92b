"""The contract between a plan, the functions that carry out its steps, and the executors that run them.

A step function has one form::

    def merge(inputs: Inputs, params: Mapping[str, Any], output: Path, tools: StepTools) -> None

It reads the folders of its inputs, writes files into ``output`` (an empty folder that becomes the artefact when the
function returns) and says how far it is with ``tools.progress``, which also stops it when nobody wants it any more.
Nothing here imports torch: pages and the service plan with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import Cancelled, StoreError, nearest
from ..store import step_key

if TYPE_CHECKING:
    from ..store import Store
    from ..types import Tensors

Keys = str | tuple[str, ...]
Inputs = Mapping[str, Path | tuple[Path, ...]]
StepFunction = Callable[[Inputs, Mapping[str, Any], Path, "StepTools"], None]

PACKAGE = __name__.split(".", maxsplit=1)[0]
PROGRESS_INTERVAL = 0.1  # seconds between two reports of one step
SHARE = 0  # threads of a step that comes in numbers: an equal share of the cores for each worker
NOTHING: Mapping[str, Any] = MappingProxyType({})

# Step name → where its function lives; a leading dot means "inside this package". Imported when the step runs.
STEPS: dict[str, str] = {
    "heads": ".pipeline.run.text_heads:build",
    "merge": ".pipeline.run.merging:merge",
    "salience": ".pipeline.run.merging:salience",
    "features": ".pipeline.run.encoding:features",
    "calibrate": ".pipeline.run.calibrating:calibrate",
    "bundle": ".pipeline.run.bundle:bundle",
    "projection": ".pipeline.run.projecting:projection",
    "register": ".pipeline.zoos.pictures:register",
    "experiment": ".pipeline.studies.measure:experiment",
    "import": ".pipeline.zoos.import_checkpoints:carry_out_import",
    "import_check": ".pipeline.zoos.import_checkpoints:check_import",
    "weight_geometry": ".pipeline.views.weights:geometry",
    "weight_kept": ".pipeline.views.weights:kept",
    "weight_spectra": ".pipeline.views.weights:spectra",
    "path": ".pipeline.views.weights:path",
    "interpolation": ".pipeline.views.weights:interpolation",
    "depth": ".pipeline.views.depth:depth",
    "stitching": ".pipeline.views.stitching:stitching",
    "shift": ".pipeline.views.shift:shifted",
    "view_table": ".pipeline.views.models:gather",
    "outliers": ".pipeline.views.features:outliers",
    "coverage": ".pipeline.views.features:coverage",
    "predictions": ".pipeline.views.features:predictions",
    "wrong_task": ".pipeline.views.request:wrong_task",
    "validation_features": ".pipeline.studies.validation:validation_features",
    "validate": ".pipeline.studies.validation:validate",
    "sweep": ".pipeline.studies.validation:gather",
    "collect": ".pipeline.collecting:collect_step",
    "preflight": ".pipeline.preflight.check:preflight",
    "fetch": ".pipeline.zoos.fetch:fetch",
    "finetune": ".pipeline.zoos.finetune:finetune",
    "adopt_experts": ".pipeline.zoos.finetune:adopt_experts",
}

# Functions without arguments that workers call once when they start, to have slow things compiled ahead.
WARM_UP: tuple[str, ...] = (".pipeline.warm:warm_up",)


@dataclass(frozen=True)
class Step:
    """One node of a plan: a function, what it is given, and the key of the artefact it leaves."""

    name: str  # a row of STEPS
    key: str  # content key of the artefact, see `step_key`
    params: Mapping[str, Any] = field(default_factory=dict)  # JSON values
    inputs: Mapping[str, Keys] = field(default_factory=dict)  # role → key(s) of the steps it reads
    label: str = ""  # for people, e.g. "Encode digits with the merged model"
    weight: float = 1.0  # relative cost, for the progress bar
    gpu: bool = False  # wants an accelerator when there is one
    threads: int | None = None  # numeric threads; None: cores ÷ busy workers; SHARE: cores ÷ workers
    version: int = 1

    @property
    def needs(self) -> tuple[str, ...]:
        """Keys of all inputs, without their roles."""
        return tuple(dict.fromkeys(_flat(self.inputs.values())))


@dataclass(frozen=True)
class Part:
    """A whole run inside a plan: it gets a finished row of its own as soon as its artefact is there."""

    key: str  # of the artefact that the run leaves
    name: str  # what people call it
    request: Mapping[str, Any]  # what a row of its own would have asked for
    step_keys: tuple[str, ...] = ()  # artefacts that it refers to


@dataclass(frozen=True)
class Plan:
    """A graph of steps in topological order."""

    steps: tuple[Step, ...]
    result: str  # key of the artefact that is the run's result
    identity: str = ""
    parts: tuple[Part, ...] = ()
    # (key of a step that failed, reason) → how to go on without it; None: not at all. The rest has a result of its own.
    without: Callable[[str, str], Plan | None] | None = None

    def __post_init__(self) -> None:
        """Refuse a plan that no executor could carry out. Inputs no step makes are read from the store.

        Raises:
            ValueError: a step reads what a later one makes, or nobody makes the result.
        """
        later = {step.key for step in self.steps}
        if self.result not in later:
            raise ValueError(f"no step makes the result {self.result}")
        for step in self.steps:
            if missing := later.intersection(step.needs):
                raise ValueError(f"step '{step.label or step.name}' reads {sorted(missing)}, made only later")
            later.discard(step.key)

    def by_key(self) -> dict[str, Step]:
        """The steps under their keys; equal steps are one."""
        return {step.key: step for step in self.steps}

    def sinks(self) -> tuple[str, ...]:
        """Keys nobody in the plan reads, its result and its parts: what the run is for."""
        read = {key for step in self.steps for key in step.needs} - {self.result, *(part.key for part in self.parts)}
        return tuple(dict.fromkeys(step.key for step in self.steps if step.key not in read))

    def without_failed(self, key: str, reason: str) -> Plan | None:
        """The plan that is left when a step has failed, None when the whole run fails with it."""
        return self.without(key, reason) if self.without is not None else None


def make_step(
    name: str,
    *,
    params: Mapping[str, Any] = NOTHING,
    inputs: Mapping[str, Keys] = NOTHING,
    label: str = "",
    weight: float = 1.0,
    gpu: bool = False,
    threads: int | None = None,
    version: int = 1,
    device_class: str = "cpu",
    identity: Mapping[str, Any] | None = None,
) -> Step:
    """Build a step together with its key.

    Args:
        name: a row of ``STEPS``.
        params: what the function is given; JSON values.
        inputs: role → key or keys of earlier steps.
        label: for people.
        weight: relative cost.
        gpu: whether an accelerator is wanted.
        threads: numeric threads, None for a fair share of the cores.
        version: version of the function; a new one makes new artefacts.
        device_class: device class and compute dtype that belong to the identity (``cpu``, ``cuda-bf16`` …).
        identity: what is hashed in place of ``params``, for params that hold paths whose content has a digest.
    """
    key = step_key(name, version, params if identity is None else identity, inputs, device_class)
    return Step(name, key, dict(params), dict(inputs), label or name, weight, gpu, threads, version)


def step_function(name: str) -> StepFunction:
    """Import the function of a step.

    Raises:
        StoreError: there is no such step.
    """
    if name not in STEPS:
        raise StoreError(f"There is no step '{name}'. {nearest(name, STEPS)}")
    module, _, attribute = STEPS[name].partition(":")
    return getattr(import_module(module, PACKAGE), attribute)


class Monitor(Protocol):
    """Where a step's reports go, and where the wish to stop comes from."""

    def progress(self, fraction: float, message: str) -> None:
        """Take a fraction from 0 to 1 and a short text."""

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Take live metrics (JSON); each top-level key replaces the one before."""

    def log(self, line: str) -> None:
        """Take a line for the run's log."""

    def cancelled(self) -> bool:
        """Whether the work is to stop."""


class Silent:
    """A monitor that listens to nobody and never stops anything."""

    def progress(self, fraction: float, message: str) -> None:
        """Ignore it."""

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Ignore it."""

    def log(self, line: str) -> None:
        """Ignore it."""

    def cancelled(self) -> bool:
        """Never."""
        return False


class StepTools:
    """What a step function may use beside its inputs."""

    def __init__(self, store: Store, monitor: Monitor | None = None, *, device: str = "cpu", threads: int = 1) -> None:
        self.store = store
        self.monitor: Monitor = monitor or Silent()
        self.device = device  # cpu, cuda or mps
        self.threads = threads
        self.uses: list[str] = []  # nested artefacts; garbage collection keeps them with the step's own
        self._reported = 0.0

    def progress(self, fraction: float, message: str = "") -> None:
        """Report how much of the step is done; call it between batches.

        Args:
            fraction: 0 to 1.
            message: a short text such as ``batch 3 of 16``.

        Raises:
            Cancelled: nobody wants the result any more.
        """
        self.check()
        now = time.monotonic()
        if fraction >= 1 or now - self._reported >= PROGRESS_INTERVAL:
            self._reported = now
            self.monitor.progress(min(max(float(fraction), 0.0), 1.0), message)

    def part(self, start: float, stop: float) -> Callable[..., None]:
        """A ``progress`` whose 0 to 1 stands for a part of this step."""

        def progress(fraction: float, message: str = "") -> None:
            self.progress(start + (stop - start) * fraction, message)

        return progress

    def check(self) -> None:
        """Stop here when nobody wants the result any more.

        Raises:
            Cancelled: that is so.
        """
        if self.monitor.cancelled():
            raise Cancelled("Cancelled.")

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Publish live metrics, small JSON values; each top-level key replaces the one before."""
        self.monitor.metrics(values)

    def log(self, line: str) -> None:
        """Append a line to the log of the runs that wait for this step."""
        self.monitor.log(line)

    def cached(self, parts: Mapping[str, Any], compute: Callable[[], Tensors], *, version: int = 1) -> Tensors:
        """Tensors that depend on less than the step (one expert's SVDs, say), computed once and kept.

        Args:
            parts: what they are and everything they depend on, digests of files included; JSON values.
            compute: called only when the artefact is missing.
            version: version of ``compute``.

        Returns:
            The tensors, on the CPU.
        """
        from safetensors.torch import load_file, save_file

        def write(folder: Path) -> None:
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in compute().items()}
            save_file(tensors, folder / "tensors.safetensors")

        name = str(parts.get("quantity", "tensors"))
        return load_file(self.cached_folder(name, parts, write, version=version) / "tensors.safetensors")

    def cached_folder(
        self, name: str, parts: Mapping[str, Any], compute: Callable[[Path], None], *, version: int = 1
    ) -> Path:
        """The same for files: ``compute`` writes into the folder it is given.

        Returns:
            The artefact's folder.
        """
        key = step_key(f"cached.{name}", version, parts, {}, self.device)
        self.uses.append(key)
        found = self.store.find(key)
        if found is None:
            with self.store.create(key, step=f"cached.{name}", version=version, label=name) as folder:
                compute(folder)
            found = self.store.find(key)
        if found is None:
            raise StoreError(f"The artefact of '{name}' could not be read back after it was written. Is the disk full?")
        return found


def _flat(values: Any) -> Iterator[str]:
    for value in values:
        yield from (value,) if isinstance(value, str) else value
