"""Steps and plans in one process, and two processes that need the same step."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from toy_steps import ToyInputs, ToyParams, join, planner, write

from engine.errors import Cancelled, MergeError
from engine.pipeline.executor import MissingInput, needed_steps, run_inline
from engine.pipeline.graph import Plan
from engine.pipeline.tools import Silent, StepTools

HERE = Path(__file__).parent


class Listener(Silent):
    def __init__(self, stop_at: str = "never"):
        self.heard, self.stop_at = [], stop_at

    def progress(self, fraction, message):
        self.heard.append((fraction, message))

    def cancelled(self):
        return any(self.stop_at in message for _, message in self.heard)


def plan_of(*steps):
    return planner("run", {"steps": steps}, None)


def test_a_plan_is_carried_out_in_order(store):
    plan = plan_of(("write", {"text": "a"}, ()), ("write", {"text": "b"}, ()), ("join", {}, (1, 0)))
    listener = Listener()
    assert (run_inline(plan, store, listener) / "text").read_text() == "b+a"
    fractions = [fraction for fraction, _ in listener.heard]
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1.0)
    assert any("3/3 Toy join" in message for _, message in listener.heard)
    assert needed_steps(plan, store) == []
    assert store.claims.active() == {}


def test_only_what_is_missing_and_needed_is_computed(store):
    plan = plan_of(("write", {"text": "a"}, ()), ("join", {}, (0,)), ("join", {"again": 1}, (1,)))
    run_inline(plan, store)
    store.delete(plan.steps[0].key)
    assert needed_steps(plan, store) == []
    store.delete(plan.steps[2].key)
    assert [step.key for step in needed_steps(plan, store)] == [plan.steps[2].key]
    store.delete(plan.steps[1].key)
    assert [step.key for step in needed_steps(plan, store)] == [step.key for step in plan.steps]


def test_cancelling_leaves_nothing_half_done(store):
    plan = plan_of(("count", {"n": 100, "pause": 0.01}, ()))
    with pytest.raises(Cancelled):
        run_inline(plan, store, Listener(stop_at="batch 1"))
    assert store.find(plan.result) is None
    assert store.claims.active() == {}
    assert not list((store.root / "incoming").iterdir())


def test_errors_pass_through(store):
    with pytest.raises(MergeError, match="do not fit"):
        run_inline(plan_of(("refuse", {}, ())), store)


def test_inputs_of_earlier_runs_come_from_the_store(store):
    earlier = write.plan(ToyParams(text="earlier"))
    view = join.plan(ToyParams(), ToyInputs((earlier.key,)))
    plan = Plan((view,), view.key)
    with pytest.raises(MissingInput, match="not in the store"):
        run_inline(plan, store)
    run_inline(Plan((earlier,), earlier.key), store)
    assert (run_inline(plan, store) / "text").read_text() == "earlier"


def test_plans_are_checked():
    first = write.plan(ToyParams())
    second = join.plan(ToyParams(), ToyInputs((first.key,)))
    with pytest.raises(ValueError, match="made only later"):
        Plan((second, first), second.key)
    with pytest.raises(ValueError, match="no step makes the result"):
        Plan((first,), second.key)
    assert Plan((first, second), second.key).sinks() == (second.key,)
    assert replace(write, version=2).plan(ToyParams()).key != first.key
    assert pickle.loads(pickle.dumps(second)).kind is join


def test_nested_artefacts_are_computed_once_and_kept_with_the_step(store):
    torch = pytest.importorskip("torch")
    tools, calls = StepTools(store), []

    def compute():
        calls.append(1)
        return {"threshold": torch.arange(6.0).reshape(2, 3).T}

    parts = {"quantity": "thresholds", "expert": "digest", "params": {"density": 0.2}}
    first, second = tools.cached(parts, compute), tools.cached(parts, compute)
    assert torch.equal(first["threshold"], second["threshold"])
    assert first["threshold"].shape == (3, 2)
    tools.cached({**parts, "expert": "other"}, compute)
    assert len(calls) == 2
    assert len(set(tools.uses)) == 2
    with store.create("ab" * 32, step="a", uses=tools.uses):
        pass
    assert len(store.describe("ab" * 32).uses) == 2


def test_two_processes_compute_a_step_once(store, tmp_path):
    trace = tmp_path / "trace"
    code = f"""
import sys
from engine.pipeline.executor import run_inline
from engine.store import Store
from toy_steps import planner
plan = planner("run", {{"steps": [["count", {{"n": 20, "trace": {str(trace)!r}}}, []]]}}, None)
print((run_inline(plan, Store(sys.argv[1])) / "text").read_text())
"""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ["PYTHONPATH"]]),
    }
    command = [sys.executable, "-c", code, str(store.root)]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=30)[0].strip() for process in both] == ["counted", "counted"]
    assert len(trace.read_text().splitlines()) == 1


def test_progress_stays_between_zero_and_one(store):
    listener = Listener()
    tools = StepTools(store, listener)
    tools.progress(1.5)
    tools.part(0.5, 1.0)(1.0, "end")
    assert [fraction for fraction, _ in listener.heard] == [1.0, 1.0]
    tools.progress(0.1)
    tools.progress(0.2)
    assert len(listener.heard) == 2  # too soon after the last report
    assert join.plan(ToyParams(), ToyInputs(("x", "y", "x"))).needs == ("x", "y")
