"""Steps, declared beside their functions, and the keys of what they leave.

A step is declared once, where its function stands::

    class MergeParams(StepParams):
        seed: int
        sources: Sources = apart()  # where files lie: no part of the key


    @dataclass(frozen=True)
    class MergeInputs(Inputs[A]):
        heads: A | None = None


    @step("merge", params=MergeParams, inputs=MergeInputs, label="Merging", cost=2.0)
    def merge(inputs: MergeInputs[Path], params: MergeParams, output: Path, tools: StepTools) -> None:
        ...

``merge`` is then a :class:`StepKind`: ``merge.plan(params, inputs)`` makes a node of a plan, whose inputs are keys of
earlier steps. When it runs, the function is given the same inputs as folders. It writes files into ``output`` (an
empty folder that becomes the artefact when the function returns), says how far it is with ``tools.progress``, and is
stopped there when nobody wants the result any more. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from ..store import step_key
from .tools import StepTools

SHARE = 0  # threads of a step that comes in numbers: an equal share of the cores for each worker
APART = "apart"
INLINED = {"inlined": True}  # metadata of an input whose field name is no part of the role
UNHASHED = {"unhashed": True}  # metadata of an input that the parameters name already

A = TypeVar("A")  # an artefact: its key in a plan, its folder when a step runs
P = TypeVar("P", bound="StepParams")


def apart(default: Any = ...) -> Any:
    """Declare a parameter that a step is given but that its result does not depend on: where files lie, names."""
    return Field(default, json_schema_extra={APART: True})


class StepParams(BaseModel):
    """Base of a step's parameters: immutable, and unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def identity(self) -> dict[str, Any]:
        """Return the parameters that the result depends on, as JSON values; those that are None are left out."""
        hidden = {name for name, info in type(self).model_fields.items() if _is_apart(info)}
        dumped = self.model_dump(mode="json", exclude=hidden)
        return {name: value for name, value in dumped.items() if value is not None}


class NoParams(StepParams):
    """Parameters of a step that depends on its inputs alone."""


@dataclass(frozen=True)
class Inputs(Generic[A]):
    """Base of a step's inputs by role; fields hold an artefact, None, or mappings and tuples of them."""


@dataclass(frozen=True)
class NoInputs(Inputs[A]):
    """Inputs of a step that reads no other step's artefact."""


@dataclass(frozen=True)
class Step:
    """One node of a plan: what is computed of what, and the key of the artefact that it leaves."""

    kind: StepKind
    params: StepParams
    inputs: Inputs[str]
    key: str  # see `step_key`
    label: str  # for people, e.g. "Encode digits with the merged model"
    gpu: bool = False  # runs on an accelerator when there is one

    @property
    def name(self) -> str:
        """Return the kind's name."""
        return self.kind.name

    @property
    def version(self) -> int:
        """Return the version of the kind's function."""
        return self.kind.version

    @property
    def threads(self) -> int | None:
        """Return the numeric threads: None for cores ÷ busy workers, ``SHARE`` for cores ÷ workers."""
        return self.kind.threads

    @property
    def cost(self) -> float:
        """Return the relative cost, for the progress bar."""
        cost = self.kind.cost
        return float(cost(self.params)) if callable(cost) else cost

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the keys of all inputs, without their roles."""
        return tuple(dict.fromkeys(flat(self.inputs).values()))


@dataclass(frozen=True)
class StepKind(Generic[P]):
    """A step as it is declared: a function with its name, version, parameters, inputs, needs and cost."""

    name: str
    function: Callable[[Any, P, Path, StepTools], None]
    params: type[P]
    inputs: type[Inputs]
    label: str
    version: int = 1  # a new one makes new artefacts
    cost: float | Callable[[P], float] = 1.0  # relative
    gpu: bool | Callable[[P], bool] = False  # runs on an accelerator when there is one
    threads: int | None = None  # numeric threads; None: cores ÷ busy workers; SHARE: cores ÷ workers
    resident: bool = False  # keeps something in memory for the next one, so that the same worker is given it
    retold: tuple[str, str] | None = None  # a live metric, and the artefact's file that tells it to later runs

    def plan(
        self, params: P, inputs: Inputs[str] | None = None, *, label: str = "", device: str = "cpu", gpu: bool = False
    ) -> Step:
        """Make a node of a plan.

        Args:
            params: what the function is given.
            inputs: keys of earlier steps by role.
            label: for people; the kind's own where nothing is said.
            device: device class and compute dtype that belong to the identity (``cpu``, ``cuda-bf16`` …).
            gpu: whether there is an accelerator for a kind that wants one.
        """
        read = NoInputs() if inputs is None else inputs
        key = step_key(self.name, self.version, params.identity(), flat(read, hashed=True), device)
        wants = self.gpu(params) if callable(self.gpu) else self.gpu
        return Step(self, params, read, key, label or self.label, wants and gpu)

    def __call__(self, inputs: Inputs[Path], params: P, output: Path, tools: StepTools) -> None:
        """Carry the step out."""
        self.function(inputs, params, output, tools)

    def __reduce__(self) -> tuple[Callable[[str, str], Any], tuple[str, str]]:
        """Travel between processes by place: the receiver imports the declaration."""
        return declared_at, (self.function.__module__, self.function.__qualname__)


def step(
    name: str,
    *,
    label: str,
    params: type[P] = NoParams,  # type: ignore[assignment]
    inputs: type[Inputs] = NoInputs,
    version: int = 1,
    cost: float | Callable[[P], float] = 1.0,
    gpu: bool | Callable[[P], bool] = False,
    threads: int | None = None,
    resident: bool = False,
    retold: tuple[str, str] | None = None,
) -> Callable[[Callable[[Any, P, Path, StepTools], None]], StepKind[P]]:
    """Declare the function below as a step; see :class:`StepKind` for the arguments."""

    def declare(function: Callable[[Any, P, Path, StepTools], None]) -> StepKind[P]:
        return StepKind(name, function, params, inputs, label, version, cost, gpu, threads, resident, retold)

    return declare


def declared_at(module: str, name: str) -> StepKind:
    """Import a declaration from its place."""
    found = getattr(import_module(module), name)
    if not isinstance(found, StepKind):
        raise TypeError(f"{module}.{name} is no step")
    return found


def flat(inputs: Inputs[A], *, hashed: bool = False) -> dict[str, A]:
    """Return all artefacts by role: names of fields and keys of mappings, joined by slashes.

    Args:
        inputs: of a step.
        hashed: leave out what is no part of the key.
    """
    return dict(_walk("", inputs, hashed))


def located(inputs: Inputs[str], place: Callable[[str], Path]) -> Inputs[Path]:
    """Return the same inputs with every key replaced by its folder."""
    return _replaced(inputs, place)


def closure(steps: Mapping[str, Step], keys: Iterable[str]) -> list[Step]:
    """Return these steps and all that they need, in the order in which they stand."""
    found: set[str] = set()
    stack = list(keys)
    while stack:
        key = stack.pop()
        if key in steps and key not in found:
            found.add(key)
            stack.extend(steps[key].needs)
    return [step for key, step in steps.items() if key in found]


def _is_apart(info: FieldInfo) -> bool:
    return isinstance(info.json_schema_extra, dict) and bool(info.json_schema_extra.get(APART))


def _walk(role: str, value: Any, hashed: bool) -> Iterator[tuple[str, Any]]:
    if value is None:
        return
    if dataclasses.is_dataclass(value):
        for part in dataclasses.fields(value):
            if not (hashed and part.metadata == UNHASHED):
                own = role if part.metadata == INLINED else _joined(role, part.name)
                yield from _walk(own, getattr(value, part.name), hashed)
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _walk(_joined(role, str(name)), entry, hashed)
    elif isinstance(value, tuple):
        for number, entry in enumerate(value):
            yield from _walk(_joined(role, str(number)), entry, hashed)
    else:
        yield role, value


def _joined(role: str, name: str) -> str:
    return f"{role}/{name}" if role else name


def _replaced(value: Any, place: Callable[[str], Path]) -> Any:
    if value is None:
        return None
    if dataclasses.is_dataclass(value):
        parts = {part.name: _replaced(getattr(value, part.name), place) for part in dataclasses.fields(value)}
        return type(value)(**parts)
    if isinstance(value, Mapping):
        return {name: _replaced(entry, place) for name, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(_replaced(entry, place) for entry in value)
    return place(value)
