"""Plans: graphs of steps, and the runs that a plan may hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .steps import Step, closure


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
                raise ValueError(f"step '{step.label}' reads {sorted(missing)}, made only later")
            later.discard(step.key)

    @classmethod
    def to(cls, result: str, steps: Mapping[str, Step], also: Iterable[str] = ()) -> Plan:
        """Plan for one result: the steps that lead to it, and to other keys that are wanted along with it."""
        return cls(tuple(closure(steps, (result, *also))), result)

    def by_key(self) -> dict[str, Step]:
        """Return the steps under their keys; equal steps are one."""
        return {step.key: step for step in self.steps}

    def sinks(self) -> tuple[str, ...]:
        """Return the keys that no step of the plan reads, its result and its parts: those it is carried out for."""
        read = {key for step in self.steps for key in step.needs} - {self.result, *(part.key for part in self.parts)}
        return tuple(dict.fromkeys(step.key for step in self.steps if step.key not in read))

    def without_failed(self, key: str, reason: str) -> Plan | None:
        """Return the plan that is left when a step has failed, None when the whole run fails with it."""
        return self.without(key, reason) if self.without is not None else None
