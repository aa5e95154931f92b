"""A running service: what happens to the runs that it takes up."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from engine.service.devices import read_devices
from engine.store.owners import process_id


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def half_written(service) -> list[Path]:
    return [path for path in (service.store.root / "artefacts").rglob("half") if not (path.parent / "text").exists()]


def test_a_run_finishes(service):
    run = service.submit(["write", {"text": "a"}, []], ["write", {"text": "b"}, []], ["join", {}, [0, 1]])
    row = service.ended(run)
    assert (row.state, row.error, row.fraction) == ("finished", "", 1.0)
    assert (service.store.find(row.result) / "text").read_text() == "a+b"
    assert len(row.step_keys) == 3
    assert row.step_count == 3


def test_progress_metrics_and_log_appear(service, gate):
    run = service.submit(["count", {"n": 10, "gate": str(gate)}, []])
    service.until(lambda: "batch" in service.store.runs.get(run.id).message, what="progress")
    row = service.store.runs.get(run.id)
    assert row.step == "Toy count"
    assert (row.step_number, row.step_count) == (1, 1)
    gate.touch()
    assert 0 < service.ended(run).fraction <= 1
    (counted,) = [line.line for line in service.store.runs.logs.read(run.id) if line.line.startswith("counted")]
    assert service.store.runs.get(run.id).metrics["curve"][-1] == int(counted.split()[1]) - 2


def test_the_heartbeat_tells_devices_and_memory(service):
    first, *_ = read_devices(service.store.lease.status().devices)
    assert first.name == "cpu"
    assert 0 < first.own < first.total


@pytest.mark.parametrize("name", ["sleep", "spin", "count"])
def test_cancel_ends_any_step(service, name):
    params = {"n": 10_000, "pause": 0.01} if name == "count" else {"seconds": 60, "text": name}
    run = service.submit([name, params, []])
    service.until(lambda: service.store.runs.get(run.id).message not in ("", "Planning", "Waiting for a worker"))
    service.store.runs.request_cancel(run.id)
    took = service.until(lambda: service.state(run) == "cancelled", 10, "the cancellation")
    assert took < 5  # the aim is two seconds; see benchmarks
    assert not half_written(service)
    assert not service.store.claims.active()


def test_runs_that_wait_for_a_worker_are_cancelled_at_once(service):
    runs = [service.submit(["sleep", {"seconds": 60, "text": str(i)}, []]) for i in range(12)]
    service.until(lambda: sum(service.state(run) == "running" for run in runs) == 8)
    # Runs are planned side by side: any of the eight may be the first to get a worker.
    service.until(lambda: any(service.store.runs.get(run.id).message == "asleep" for run in runs))
    for run in reversed(runs):
        service.store.runs.request_cancel(run.id)
    assert {service.ended(run).state for run in runs} == {"cancelled"}


def test_shared_steps_are_computed_once(service, gate, tmp_path):
    trace = tmp_path / "trace"
    shared = ["count", {"n": 1, "trace": str(trace), "gate": str(gate)}, []]
    first = service.submit(shared, ["join", {"again": 1}, [0]])
    second = service.submit(shared, ["join", {"again": 2}, [0]])
    for run in (first, second):
        service.until(lambda run=run: "batch" in service.store.runs.get(run.id).message)
    gate.touch()
    assert service.ended(first).state == service.ended(second).state == "finished"
    assert len(lines(trace)) == 1


def test_cancelling_one_of_two_leaves_the_other(service, gate, tmp_path):
    trace = tmp_path / "trace"
    shared = ["count", {"n": 1, "trace": str(trace), "gate": str(gate)}, []]
    first, second = service.submit(shared), service.submit(shared, ["join", {}, [0]])
    service.until(lambda: "batch" in service.store.runs.get(second.id).message)
    service.store.runs.request_cancel(first.id)
    assert service.ended(first).state == "cancelled"
    gate.touch()
    assert service.ended(second).state == "finished"
    assert len(lines(trace)) == 1


def test_reasons_of_failure(service):
    refused = service.ended(service.submit(["refuse", {}, []]))
    assert (refused.state, refused.error, refused.error_kind) == ("failed", "These experts do not fit.", "MergeError")
    crashed = service.ended(service.submit(["crash", {}, []], ["join", {}, [0]]))
    assert crashed.error == "Unexpected error in step 'Toy crash': ZeroDivisionError: of toys"
    assert not any("Traceback" in line.line for line in service.store.runs.logs.read(crashed.id))
    assert any("Traceback" in line.line for line in service.store.runs.logs.read(crashed.id, trace=True))
    unplanned = service.ended(service.submit(refuse=True))
    assert (unplanned.state, unplanned.error) == ("failed", "This cannot be planned.")


def test_a_killed_worker_costs_nothing_but_time(service, gate, tmp_path):
    trace = tmp_path / "trace"
    run = service.submit(["count", {"n": 1, "trace": str(trace), "gate": str(gate)}, []])
    service.until(lambda: lines(trace))
    os.kill(int(lines(trace)[0]), signal.SIGKILL)
    gate.touch()
    assert service.ended(run).state == "finished"
    assert len(lines(trace)) == 2
    assert any("tried again" in line.line for line in service.store.runs.logs.read(run.id))
    assert not half_written(service)


def test_a_step_that_kills_its_workers_fails(service, tmp_path):
    run = service.submit(["die_once", {"trace": str(tmp_path / "trace"), "times": 99}, []])
    row = service.ended(run)
    assert row.state == "failed"
    assert row.error.startswith("The worker process ended 3 times while it computed 'Toy die_once'.")
    assert len(lines(tmp_path / "trace")) == 3


def test_a_damaged_input_is_made_again(service, tmp_path):
    first = ["write", {"text": "x", "trace": str(tmp_path / "trace")}, []]
    made = service.ended(service.submit(first))
    (service.store.folder_of(made.result) / "text").write_text("longer")
    row = service.ended(service.submit(first, ["join", {"again": 1}, [0]]))
    assert row.state == "finished"
    assert (service.store.find(row.result) / "text").read_text() == "x"
    assert len(lines(tmp_path / "trace")) == 2


def test_a_second_service_is_not_needed(service):
    second = service.launch()
    assert second.wait(service.patience) == 1
    assert "not needed" in (service.store.root / "service.txt").read_text()
    assert process_id(service.store.lease.status().owner) == service.process.pid


def test_finished_steps_are_not_computed_again(service, tmp_path):
    trace = tmp_path / "trace"
    step = ["write", {"text": "once", "trace": str(trace)}, []]
    assert service.ended(service.submit(step)).result == service.ended(service.submit(step)).result
    assert len(lines(trace)) == 1


def test_the_next_service_takes_up_what_a_killed_one_left(own_service, gate, tmp_path):
    trace, slow = tmp_path / "trace", tmp_path / "slow"
    own_service.start()
    run = own_service.submit(
        ["write", {"trace": str(trace)}, []],
        ["count", {"n": 1, "trace": str(slow), "gate": str(gate)}, [0]],
        ["join", {}, [1]],
    )
    own_service.until(lambda: lines(slow))
    os.kill(own_service.process.pid, signal.SIGKILL)
    own_service.process.wait()
    worker = int(lines(slow)[0])
    own_service.until(lambda: not Path(f"/proc/{worker}").exists(), what="the end of the orphaned worker")
    assert not half_written(own_service)
    gate.touch()
    own_service.start("0.01")
    assert own_service.ended(run).state == "finished"
    assert (len(lines(trace)), len(lines(slow))) == (1, 2)
    assert own_service.process.wait(own_service.patience) == 0  # nobody needs it any more
    assert own_service.store.lease.status() is None
