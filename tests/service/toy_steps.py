"""Steps that do next to nothing, and a planner that makes plans of them."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

from engine.errors import MergeError
from engine.pipeline.graph import Plan
from engine.pipeline.steps import A, Inputs, StepParams, step
from engine.pipeline.tools import StepTools


class ToyParams(StepParams):
    """All that toys need."""

    text: str = ""
    trace: str | None = None
    n: int = 0
    pause: float = 0.05
    seconds: float = 0.0
    times: int = 0
    again: int = 0
    label: str = ""
    gate: str | None = None


@dataclass(frozen=True)
class ToyInputs(Inputs[A]):
    parts: tuple[A, ...] = ()


def toy(function):
    """Declare a toy step named as its function."""
    return step(function.__name__, label=f"Toy {function.__name__}", params=ToyParams, inputs=ToyInputs)(function)


def planner(kind, request, store):
    """A request lists steps as [name, params, indices of inputs]; the last one is the result."""
    if request.get("refuse"):
        raise MergeError("This cannot be planned.")
    if request.get("die"):
        os._exit(9)
    nodes = []
    for name, params, needs in request["steps"]:
        inputs = ToyInputs(tuple(nodes[index].key for index in needs))
        nodes.append(globals()[name].plan(ToyParams(**params), inputs))
    return Plan(tuple(nodes), nodes[-1].key)


def _leave_trace(params):
    if params.trace:
        with Path(params.trace).open("a") as file:
            file.write(f"{os.getpid()}\n")


@toy
def write(inputs, params, output: Path, tools: StepTools):
    _leave_trace(params)
    (output / "text").write_text(params.text)


@toy
def join(inputs, params, output: Path, tools: StepTools):
    _leave_trace(params)
    (output / "text").write_text("+".join((part / "text").read_text() for part in inputs.parts))


@toy
def count(inputs, params, output: Path, tools: StepTools):
    """Listens between batches, and reports; with a gate it goes on until that file is there."""
    _leave_trace(params)
    (output / "half").write_text("half")
    for number in itertools.count():
        if number >= params.n and (params.gate is None or Path(params.gate).exists()):
            break
        tools.progress(min(1.0, number / params.n), f"batch {number}")
        tools.metrics({"curve": list(range(number))[-5:]})
        time.sleep(params.pause)
    tools.log(f"counted {number}")
    (output / "text").write_text("counted")


@toy
def sleep(inputs, params, output: Path, tools: StepTools):
    """Never listens, and lets the interpreter go."""
    _leave_trace(params)
    (output / "half").write_text("half")
    tools.progress(0.5, "asleep")
    time.sleep(params.seconds)
    (output / "text").write_text("slept")


@toy
def spin(inputs, params, output: Path, tools: StepTools):
    """Never listens, and keeps the interpreter busy."""
    _leave_trace(params)
    tools.progress(0.5, "spinning")
    until = time.monotonic() + params.seconds
    while time.monotonic() < until:
        pass


@toy
def refuse(inputs, params, output: Path, tools: StepTools):
    raise MergeError("These experts do not fit.")


@toy
def crash(inputs, params, output: Path, tools: StepTools):
    raise ZeroDivisionError("of toys")


@toy
def die_once(inputs, params, output: Path, tools: StepTools):
    """Ends its process; at most ``times`` times."""
    trace = Path(params.trace)
    _leave_trace(params)
    if len(trace.read_text().splitlines()) <= params.times:
        os._exit(9)
    (output / "text").write_text("survived")
