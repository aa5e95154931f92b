"""Steps that do next to nothing, and a planner that makes plans of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from engine.errors import MergeError
from engine.pipeline.steps import Plan, StepTools, make_step

NAMES = ("write", "join", "count", "sleep", "spin", "refuse", "crash", "die_once")
STEPS = {name: f"toy_steps:{name}" for name in NAMES}


def planner(kind, request, store):
    """A request lists steps as [name, params, indices of inputs]; the last one is the result."""
    if request.get("refuse"):
        raise MergeError("This cannot be planned.")
    steps = []
    for name, params, needs in request["steps"]:
        inputs = {"parts": tuple(steps[index].key for index in needs)} if needs else {}
        steps.append(make_step(name, params=params, inputs=inputs, label=f"Toy {name}"))
    return Plan(tuple(steps), steps[-1].key)


def _leave_trace(params):
    if "trace" in params:
        with Path(params["trace"]).open("a") as file:
            file.write(f"{os.getpid()}\n")


def write(inputs, params, output: Path, tools: StepTools):
    _leave_trace(params)
    (output / "text").write_text(str(params.get("text", "")))


def join(inputs, params, output: Path, tools: StepTools):
    _leave_trace(params)
    (output / "text").write_text("+".join((part / "text").read_text() for part in inputs["parts"]))


def count(inputs, params, output: Path, tools: StepTools):
    """Listens between batches, and reports."""
    _leave_trace(params)
    (output / "half").write_text("half")
    for number in range(params["n"]):
        tools.progress(number / params["n"], f"batch {number}")
        tools.metrics({"curve": list(range(number))[-5:]})
        time.sleep(params.get("pause", 0.05))
    tools.log("counted")
    (output / "text").write_text("counted")


def sleep(inputs, params, output: Path, tools: StepTools):
    """Never listens, and lets the interpreter go."""
    _leave_trace(params)
    (output / "half").write_text("half")
    tools.progress(0.5, "asleep")
    time.sleep(params["seconds"])
    (output / "text").write_text("slept")


def spin(inputs, params, output: Path, tools: StepTools):
    """Never listens, and keeps the interpreter busy."""
    _leave_trace(params)
    tools.progress(0.5, "spinning")
    until = time.monotonic() + params["seconds"]
    while time.monotonic() < until:
        pass


def refuse(inputs, params, output: Path, tools: StepTools):
    raise MergeError("These experts do not fit.")


def crash(inputs, params, output: Path, tools: StepTools):
    raise ZeroDivisionError("of toys")


def die_once(inputs, params, output: Path, tools: StepTools):
    """Ends its process; at most ``times`` times."""
    trace = Path(params["trace"])
    _leave_trace(params)
    if len(trace.read_text().splitlines()) <= params["times"]:
        os._exit(9)
    (output / "text").write_text("survived")
