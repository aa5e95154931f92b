"""Tools of a running step: progress, live numbers, the log, and a cache for parts of its work."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import Cancelled, StoreError
from ..store import step_key

if TYPE_CHECKING:
    from ..store import Store
    from ..types import Tensors

PROGRESS_INTERVAL = 0.1  # seconds between two reports of one step


class Monitor(Protocol):
    """The receiver of a step's reports, and the source of the wish to stop."""

    def progress(self, fraction: float, message: str) -> None:
        """Take a fraction from 0 to 1 and a short text."""

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Take live metrics (JSON); each top-level key replaces the one before."""

    def log(self, line: str) -> None:
        """Take a line for the run's log."""

    def cancelled(self) -> bool:
        """Return whether the work is to stop."""


class Silent:
    """A monitor that drops all reports and never stops anything."""

    def progress(self, fraction: float, message: str) -> None:
        """Drop it."""

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Drop it."""

    def log(self, line: str) -> None:
        """Drop it."""

    def cancelled(self) -> bool:
        """Return False."""
        return False


class StepTools:
    """Tools of one running step."""

    def __init__(
        self, store: Store, monitor: Monitor | None = None, *, key: str = "", device: str = "cpu", threads: int = 1
    ) -> None:
        self.store = store
        self.key = key  # of the artefact that the step leaves
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
        """Return a ``progress`` whose 0 to 1 stands for a part of this step."""

        def progress(fraction: float, message: str = "") -> None:
            self.progress(start + (stop - start) * fraction, message)

        return progress

    def check(self) -> None:
        """Raise where the result is no longer wanted.

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
        """Return tensors that depend on less than the step (one expert's SVDs, say), computed once and kept.

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
        """Do the same for files: ``compute`` writes into the folder it is given.

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
