"""A disk that fills while runs are at work."""

from __future__ import annotations

import time

import pytest

from tests.full_disk import fill, small_disk


@pytest.mark.parametrize("left", [4_000_000, 0])
def test_a_full_disk_pauses_runs_which_go_on_by_themselves(own_service, gate, left):
    """With room for the run table only, and with none at all."""
    service = own_service
    with small_disk(service.store.root, 40) as disk:
        service.start()
        pid = service.store.lease.status().pid
        run = service.submit(["count", {"n": 1, "gate": str(gate)}, []], ["write", {"text": "a"}, [0]])
        service.until(lambda: service.store.runs.get(run.id).message.startswith("batch"))
        ballast = fill(disk, left)
        gate.touch()
        if left:
            service.until(lambda: "Paused: the disk has 4 MB free" in service.store.runs.get(run.id).message)
        time.sleep(3)
        assert service.store.runs.get(run.id).state == "running"
        ballast.unlink()
        assert service.ended(run).state == "finished"
        assert service.store.lease.status().pid == pid
