"""A full disk is named, costs nothing that was written, and is waited out by who computes."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.errors import DiskFull
from engine.store import Store, step_key
from tests.full_disk import MEGABYTE, fill, small_disk


@pytest.fixture
def store(tmp_path):
    with small_disk(tmp_path / "disk", 24) as disk:
        yield Store(disk / "store")


def write_bytes(folder, size):
    (folder / "file").write_bytes(bytes(size))


def write_tensors(folder, size):
    save_file({"weight": np.zeros(size, dtype=np.uint8)}, folder / "weights.safetensors")


@pytest.mark.parametrize("write", [write_bytes, write_tensors])
def test_an_artefact_that_finds_no_room_is_named_and_leaves_nothing(store, write):
    store.runs.list()
    key = step_key("large", 1, {}, {})
    with pytest.raises(DiskFull, match="Make room") as caught, store.create(key, step="large") as folder:
        write(folder, 40 * MEGABYTE)
    assert store.find(key) is None
    assert not list((store.root / "incoming").iterdir())
    assert not store.has_room(caught.value.needed)
    assert store.runs.submit("run", {}).state == "queued"  # the table still has room


def test_the_last_room_is_left_to_the_table(store):
    run = store.runs.submit("run", {})
    fill(store.root, 4 * MEGABYTE)
    with pytest.raises(DiskFull), store.create(step_key("small", 1, {}, {}), step="small"):
        pass
    assert store.runs.edit(run.id, notes="written").notes == "written"


def test_a_table_on_a_full_disk_is_named_and_written_when_there_is_room(store):
    run = store.runs.submit("run", {})
    ballast = fill(store.root, 0)
    with pytest.raises(DiskFull, match="Make room"):
        store.runs.edit(run.id, notes="x" * 50_000)
    store.lease.page_seen()
    store.database.holds_out = lambda: True
    threading.Timer(1.5, ballast.unlink).start()
    began = time.monotonic()
    assert len(store.runs.edit(run.id, notes="y" * 50_000).notes) == 50_000
    assert time.monotonic() - began > 1
