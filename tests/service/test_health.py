"""Probes and numbers: what they say while all is well, and while something is not."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import time
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from engine.errors import StoreError
from engine.service.endpoint import ENV, Endpoint
from engine.service.health import metrics_text, not_ready
from engine.service.journal import JsonLines
from engine.service.meter import Meter
from engine.store import Store


def numbers(text: bytes) -> dict:
    """Sample and labels → value."""
    families = text_string_to_metric_families(text.decode())
    return {(s.name, *sorted(s.labels.values())): s.value for family in families for s in family.samples}


def asked(address: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_parts_that_are_not_ready_are_named(tmp_path):
    store = Store(tmp_path / "store")
    assert not_ready(store) == {"engine": "The engine is not running."}
    store.lease.acquire("service:elsewhere:1:1", "toy")
    store.lease.renew("service:elsewhere:1:1", state="ready")
    assert not_ready(store) == {}
    store.database.close()
    store.database.file.write_bytes(b"nothing" * 100)
    assert list(not_ready(Store(tmp_path / "store"))) == ["database"]
    assert numbers(metrics_text(Store(tmp_path / "store"))) == {("mergelens_database_up",): 0}


def test_numbers_of_the_queue_the_engine_and_the_steps(tmp_path):
    store, meter = Store(tmp_path / "store"), Meter()
    store.runs.submit("run", {})
    store.runs.fail(store.runs.submit("sweep", {}).id, "no")
    store.runs.delete(store.runs.list(states=("failed",))[0].id)
    store.lease.acquire("service:elsewhere:1:1", "toy")
    devices = [{"name": "cpu", "title": "two cores", "dtype": "float32", "used": 3, "total": 4, "own": 1}]
    store.lease.renew("service:elsewhere:1:1", state="ready", workers=2, busy=1, devices=devices)
    store.backups.make("asked-for")
    meter.planned(5, 2)
    meter.started("a")
    meter.ended("a", "merge", "done")
    meter.ended("b", "merge", "failed")
    meter.ended("c", "features", "lost")
    found = numbers(metrics_text(store, meter.registry))
    assert {name: value for name, value in found.items() if name[0] == "mergelens_runs"} == {
        ("mergelens_runs", "queued", "run"): 1
    }
    assert found["mergelens_workers",] == 2
    assert found["mergelens_memory_bytes", "cpu", "total"] == 4
    assert found["mergelens_step_seconds_count", "merge"] == 1
    assert found["mergelens_step_failures_total", "merge"] == 1
    assert found["mergelens_step_losses_total", "features"] == 1
    assert (found["mergelens_steps_found_total",], found["mergelens_steps_missing_total",]) == (3, 2)
    assert found["mergelens_queue_wait_seconds",] >= 0
    assert found["mergelens_backup_age_seconds",] < 60


def test_the_endpoint_answers_and_says_when_it_cannot_listen(tmp_path):
    endpoint = Endpoint(Store(tmp_path / "store"), CollectorRegistry(), "127.0.0.1:0")
    address = f"http://127.0.0.1:{endpoint.port}"
    try:
        assert asked(f"{address}/healthz") == (200, b"ok\n")
        assert asked(f"{address}/readyz") == (503, b"engine: The engine is not running.\n")
        assert b"mergelens_database_up 1.0" in asked(f"{address}/metrics")[1]
        assert asked(f"{address}/other")[0] == 404
        with pytest.raises(StoreError, match=f"cannot listen at '127.0.0.1:{endpoint.port}'"):
            Endpoint(Store(tmp_path / "store"), CollectorRegistry(), f"127.0.0.1:{endpoint.port}")
    finally:
        endpoint.close()


def test_a_line_of_the_log_names_its_run():
    record = logging.makeLogRecord({"msg": "Run %s failed:\n%s", "args": ("a1", "no"), "levelname": "WARNING"})
    record.run = "a1"
    line = JsonLines().format(record)
    assert "\n" not in line
    assert {name: json.loads(line)[name] for name in ("level", "message", "run")} == {
        "level": "warning",
        "message": "Run a1 failed:\nno",
        "run": "a1",
    }


def test_a_service_is_probed_logs_runs_and_hands_them_back_when_it_is_told_to_end(own_service, tmp_path):
    port = free_port()
    own_service.environment = {ENV: f"127.0.0.1:{port}", "MERGELENS_LOG_FORMAT": "json"}
    own_service.start()
    first = own_service.ended(own_service.submit(["write", {"text": "a"}, []]))
    long = own_service.submit(["sleep", {"seconds": 300, "trace": str(tmp_path / "trace")}, []])
    own_service.until(lambda: (tmp_path / "trace").exists(), 60, "the step's start")
    assert asked(f"http://127.0.0.1:{port}/readyz") == (200, b"ready\n")
    found = numbers(asked(f"http://127.0.0.1:{port}/metrics")[1])
    assert found["mergelens_step_seconds_count", "write"] == 1
    assert found["mergelens_runs_at_work",] == 1
    own_service.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert own_service.process.wait(60) == 0
    assert time.monotonic() - began < 30
    row = own_service.store.runs.get(long.id)
    assert (row.state, row.owner, row.plannings) == ("queued", None, 0)
    assert own_service.store.lease.status() is None
    lines = [json.loads(line) for line in (own_service.store.root / "service.txt").read_text().splitlines()]
    assert [line["message"] for line in lines if line.get("run") == first.id] == [
        f"Run {first.id} is taken up.",
        f"Run {first.id} has finished.",
    ]
    assert os.environ.get("MERGELENS_LOG_FORMAT") is None
