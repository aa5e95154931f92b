"""A sweep on a cluster of several worker processes: one is killed in the middle, then the service itself."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from engine.recipe import parse_recipe
from engine.sweeps import read_table
from tests.tiny_zoo import make_zoo

POINTS = [0.1, 0.2, 0.3, 0.4, 0.5]


class Trace:
    """Lines that the workers wrote down."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, word: str) -> list[list[str]]:
        text = self.path.read_text() if self.path.exists() else ""
        return [line.split()[1:] for line in text.splitlines() if line.startswith(f"{word} ")]

    def counts(self, word: str) -> Counter[str]:
        return Counter(key for _, key, _ in self.lines(word))

    def at_work(self) -> list[tuple[str, int]]:
        """Steps that have begun and not ended, with their processes."""
        ended = self.counts("end")
        return [(key, int(pid)) for _, key, pid in self.lines("begin") if key not in ended]


@pytest.mark.slow
def test_killed_workers_and_services_cost_a_sweep_nothing_but_time(own_service, tmp_path, monkeypatch):
    trace = Trace(tmp_path / "trace")
    monkeypatch.setenv("TRACED_STEPS", str(trace.path))
    zoo = make_zoo(tmp_path / "zoo", experts=("alpha", "beta"))
    recipe = parse_recipe({"zoo": str(zoo)}).model_dump(mode="json")
    settings = [{"place": "merge.params.scaling", "values": POINTS}]
    own_service.script = "run_traced_service.py"
    own_service.start()
    runs = own_service.store.runs
    row = runs.submit("sweep", {"recipe": recipe, "settings": settings}, name="A sweep")

    own_service.until(lambda: len(trace.counts("end")) >= 5, what="the first steps")
    assert len({pid for _, _, pid in trace.lines("begin")}) == 2, "the runs of a sweep go to all workers"
    own_service.until(trace.at_work, what="a step at work")
    victim_key, victim = trace.at_work()[-1]
    os.kill(victim, signal.SIGKILL)
    own_service.until(lambda: len(runs.list(parent=row.id)) >= 2, what="the first finished points")

    os.kill(own_service.process.pid, signal.SIGKILL)
    own_service.process.wait()
    workers = {int(pid) for _, _, pid in trace.lines("begin")}
    own_service.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), what="the workers' end")
    assert runs.get(row.id).active
    planned = runs.get(row.id).step_keys
    stored = {key[:16] for key in planned if own_service.store.find(key)}
    first = trace.counts("begin")
    assert {key for key, count in first.items() if count > 1} <= {victim_key}, "only the victim's step begins again"
    own_service.start()
    done = own_service.ended(row)

    assert (done.state, done.error) == ("finished", "")
    table = read_table(own_service.store.find(done.result))
    assert [point.values[0] for point in table.points] == POINTS
    assert all(point.evaluation["merged"].within is not None and not point.failed for point in table.points)
    children = runs.list(parent=row.id)
    assert sorted(child.result for child in children) == sorted(point.run for point in table.points)
    second = trace.counts("begin") - first
    assert stored, "the kill came in the middle"
    assert set(second) == {key[:16] for key in planned} - stored, "what was lost is computed, what was stored is not"
    assert set(second.values()) == {1}
