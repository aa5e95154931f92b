"""The base of every calibrator: building for tasks, counting, saving and loading."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .. import catalog
from ..catalog import Params
from ..errors import CalibrationError, CheckpointError, nearest
from .sampling import generator_for
from .stack import Stack

FORMAT = 1
METADATA_KEY = "mergelens"
MAX_SIZE = 1_000_000  # of a width or a count


class Calibrator(nn.Module, ABC):
    """A stack of small modules, one row per task, that repairs the features of a merged model.

    A new calibrator has no parameters and changes nothing. ``fit`` (or :meth:`reset`) builds it for named tasks;
    fitting again forgets everything. Subclasses say which tensors a module has and how they begin.
    """

    method: ClassVar[str]  # name of its row in the catalog
    deep: ClassVar[bool] = False  # acts inside the encoder
    starts_as_identity: ClassVar[bool] = True  # built but untrained, it changes nothing
    training_only: ClassVar[tuple[str, ...]] = ()  # tensors that inference does not read

    def __init__(self) -> None:
        super().__init__()
        self.tasks: tuple[str, ...] = ()
        self.sizes: dict[str, int] = {}
        self.config: Params | None = None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of one module's tensors, which the parameters of the row name."""
        return self.config.shapes(self.sizes)

    @abstractmethod
    def initialise(self, name: str, values: Tensor, generator: torch.Generator) -> None:
        """Fill one module's tensor (zeros on entry) with its start values, in place."""

    def fixed_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of tensors that belong to no module, from ``self.sizes`` and ``self.config``."""
        return {}

    @property
    def shared(self) -> bool:
        """Return whether one module serves every task, so that no task needs to be known."""
        return False

    @property
    def built(self) -> bool:
        """Return whether there are parameters."""
        return self.config is not None

    def reset(
        self,
        tasks: Sequence[str],
        sizes: Mapping[str, int],
        config: Params,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        drawn_as: Mapping[str, str] = MappingProxyType({}),
    ) -> Stack:
        """Forget everything and build untrained modules.

        Args:
            tasks: names, in the order of the rows.
            sizes: what the shapes depend on: ``dim`` (feature width); deep ones also ``width``, ``blocks``, ``tokens``.
            config: the parameters of the catalog row.
            seed: start values of a task depend on it and on the task's name only.
            dtype: of the parameters.
            device: of the parameters.
            drawn_as: task → task whose start values it has, where several stand for the same one.

        Returns:
            The stack whose views the parameters are, for training.

        Raises:
            CalibrationError: names repeat, or the sizes do not allow these parameters.
        """
        if len(set(tasks)) != len(tasks) or not tasks:
            raise CalibrationError(f"A calibrator needs distinct tasks, at least one; found {list(tasks)}.")
        self.tasks, self.sizes, self.config = tuple(tasks), dict(sizes), config
        rows = ("all tasks",) if self.shared else self.tasks
        stack = Stack(self.shapes(), len(rows), dtype, device)
        for row, owner in enumerate(rows):
            generator = generator_for(seed, drawn_as.get(owner, owner), "start")
            for name, parameter in stack.parameters.items():
                values = torch.zeros(parameter.shape[1:], dtype=dtype)
                self.initialise(name, values, generator)
                parameter.data[row].copy_(values)
        self._adopt(stack.parameters)
        return stack

    def _adopt(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters.clear()
        for name, parameter in parameters.items():
            self.register_parameter(name, parameter)

    def row(self, task: str) -> int:
        """Return the row of the module that serves a task.

        Raises:
            CalibrationError: the calibrator was not trained for it.
        """
        if self.shared:
            return 0
        if task not in self.tasks:
            raise CalibrationError(f"{self.method} was not trained for task '{task}'. {nearest(task, self.tasks)}")
        return self.tasks.index(task)

    def parameter_count(self) -> int:
        """Count the numbers that are stored, over all tasks."""
        return sum(parameter.numel() for parameter in self.parameters())

    def inference_parameter_count(self) -> int:
        """Count the numbers that inference needs, over all tasks."""
        unused = (parameter for name, parameter in self.named_parameters() if name in self.training_only)
        return self.parameter_count() - sum(parameter.numel() for parameter in unused)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return copies of the tensors on the CPU, and JSON metadata, for :meth:`from_state`."""
        tensors = {name: value.detach().cpu().clone() for name, value in self.named_parameters()}
        metadata = {
            "format": FORMAT,
            "method": self.method,
            "tasks": list(self.tasks),
            "sizes": self.sizes,
            "params": self.config.model_dump(mode="json") if self.config is not None else None,
        }
        return tensors, metadata

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> Calibrator:
        """Make a calibrator from what :meth:`state` gave.

        Raises:
            CheckpointError: of another method, or the tensors do not have the shapes the metadata asks for.
        """
        if metadata.get("method") != cls.method or metadata.get("format") != FORMAT:
            raise CheckpointError(
                f"These are weights of calibrator '{metadata.get('method')}', format {metadata.get('format')}; "
                f"'{cls.method}', format {FORMAT}, is needed."
            )
        made = cls()
        if metadata.get("params") is None:
            return made
        row = catalog.row_of(catalog.CALIBRATORS, cls.method, "calibrator")
        made.tasks, made.sizes, params = _checked(metadata)
        made.config = catalog.params_of(row, params)
        rows = 1 if made.shared else len(made.tasks)
        try:
            expected = {name: (rows, *shape) for name, shape in made.shapes().items()} | made.fixed_shapes()
        except KeyError as error:
            raise CheckpointError(f"The sizes of calibrator '{cls.method}' lack {error}.") from error
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if expected != found:
            raise CheckpointError(f"Weights of calibrator '{cls.method}' have shapes {found}; {expected} are needed.")
        made._adopt({name: nn.Parameter(tensors[name].clone()) for name in expected})
        return made

    def save(self, path: Path) -> None:
        """Write one safetensors file, the metadata as JSON in its header."""
        tensors, metadata = self.state()
        save_file(tensors, path, metadata={METADATA_KEY: json.dumps(metadata, sort_keys=True)})

    @classmethod
    def load(cls, path: Path) -> Calibrator:
        """Read a file that :meth:`save` wrote.

        Raises:
            CheckpointError: missing, damaged, or of another calibrator.
        """
        return cls.from_state(*read_state(path))


def read_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and metadata of a calibrator file.

    Raises:
        CheckpointError: missing, damaged, or not a calibrator.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(METADATA_KEY)
            if header is None:
                raise CheckpointError(
                    f"{Path(path).name} holds no calibrator: its header has no '{METADATA_KEY}' entry."
                )
            tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, json.loads(header)  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise CheckpointError(f"Calibrator file {Path(path).name} cannot be read: {error!s:.300}.") from error
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{Path(path).name} holds no calibrator: its '{METADATA_KEY}' entry is no table.")
    return tensors, metadata


def _checked(metadata: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, int], dict[str, Any]]:
    """Return tasks, sizes and parameters of a header.

    Raises:
        CheckpointError: one of them is missing or of another form.
    """
    tasks, sizes, params = (metadata.get(name) for name in ("tasks", "sizes", "params"))
    fits = isinstance(tasks, list) and isinstance(sizes, dict) and isinstance(params, dict)
    if not fits or not all(isinstance(task, str) for task in tasks) or len(set(tasks)) != len(tasks) or not tasks:
        raise CheckpointError("The calibrator's header does not name its tasks, sizes and parameters.")
    for name, size in sizes.items():
        if type(size) is not int or not 0 < size <= MAX_SIZE:
            raise CheckpointError(
                f"The calibrator's header gives '{name}' as {size!r:.40}; 1 to {MAX_SIZE:,} is valid."
            )
    return tuple(tasks), dict(sizes), dict(params)


def load_calibrator(path: Path) -> Calibrator:
    """Read a calibrator of whatever method the file names.

    Raises:
        CheckpointError: missing, damaged, or of an unknown method.
    """
    tensors, metadata = read_state(path)
    return calibrator_from_state(tensors, metadata)


def calibrator_from_state(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> Calibrator:
    """Make a calibrator of whatever method the metadata names.

    Raises:
        CheckpointError: an unknown method, or shapes that do not fit.
    """
    row = catalog.CALIBRATORS.get(str(metadata.get("method")))
    if row is None:
        raise CheckpointError(f"There is no calibrator '{metadata.get('method')}'.")
    return row.load().from_state(tensors, metadata)


def uniform(values: Tensor, bound: float, generator: torch.Generator) -> None:
    """Fill with U(−bound, bound), in place; drawn in float64, so that every dtype starts from the same numbers."""
    draws = torch.rand(values.shape, generator=generator, dtype=torch.float64)
    values.copy_(draws.mul_(2 * bound).sub_(bound))


def kaiming_bound(fan_in: int) -> float:
    """Return the bound of the default start values of a linear map: 1/√fan_in."""
    return 1.0 / math.sqrt(fan_in)
