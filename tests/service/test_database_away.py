"""A service whose run table is in PostgreSQL: the server restarts while runs are under way, and they end well."""

from __future__ import annotations

import threading
import time
from pathlib import Path

AWAY = 5.0  # seconds


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_restart_of_the_server_in_mid_run_is_waited_out(service_on_postgresql, postgresql, tmp_path, gate):
    """Statements of the service, of its workers and of who looks are in flight; each step is computed once."""
    service = service_on_postgresql
    service.start()
    pid, trace = service.store.lease.status().pid, tmp_path / "trace"
    steps = [["count", {"n": 40, "again": number, "trace": str(trace)}, []] for number in range(20)]
    busy = service.submit(*steps, ["join", {}, list(range(20))])
    held = service.submit(["count", {"n": 1, "gate": str(gate)}, []], ["write", {"text": "after"}, [0]])
    service.until(lambda: len(lines(trace)) > 3, what="steps at work")
    seen, ended = [], threading.Event()

    def look():
        while not ended.wait(0.002):
            seen.append(service.store.runs.get(busy.id).state)

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(2):
        postgresql.stop()
        time.sleep(AWAY)
        postgresql.start()
        time.sleep(1)
    gate.touch()
    rows = [service.ended(run) for run in (busy, held)]
    ended.set()
    looking.join()
    assert [(row.state, row.error) for row in rows] == [("finished", "")] * 2
    assert len(lines(trace)) == 20
    assert set(seen) <= {"running", "finished"}
    assert service.process.poll() is None
    assert service.store.lease.status().pid == pid
    assert not service.store.claims.active()
