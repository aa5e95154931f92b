"""The client: pages start the service, see how it is, replace it, end it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from engine.service import client

HERE = Path(__file__).parent


@pytest.fixture
def startable(own_service, monkeypatch):
    monkeypatch.setattr(client, "start_command", lambda: [sys.executable, str(HERE / "run_service.py")])
    monkeypatch.setattr(client, "code_version", lambda: "toy")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]]))
    monkeypatch.delenv("MERGELENS_SCHEDULER", raising=False)
    yield own_service
    client.stop_service(own_service.store)


def test_pages_start_replace_and_stop_the_service(startable, monkeypatch):
    store = startable.store
    assert client.service_state(store).state == "absent"
    began = time.monotonic()
    assert [client.ensure_service(store).state for _ in range(3)] == ["starting"] * 3
    assert time.monotonic() - began < 1
    startable.until(lambda: client.ensure_service(store).state == "ready")
    state = client.ensure_service(store)
    assert (state.ready, state.busy, str(state)) == (True, 0, f"The engine is ready: {state.workers} workers.")
    assert time.time() - store.lease.last_page() < 30
    first = store.lease.status().pid
    assert os.getsid(first) == first  # it outlives the page's process
    assert startable.ended(startable.submit(["write", {"text": "a"}, []])).state == "finished"

    run = startable.submit(["sleep", {"seconds": 60}, []])
    startable.until(lambda: store.runs.get(run.id).message == "asleep")
    monkeypatch.setattr(client, "code_version", lambda: "another")
    assert client.ensure_service(store).state == "outdated"  # busy: not replaced
    assert "has ended" in client.stop_service(store)
    assert startable.state(run) == "queued"
    assert client.stop_service(store) == "No service is running."
    assert client.service_state(store).state == "absent"


def test_an_engine_apart_is_neither_started_nor_replaced_by_pages(own_service, monkeypatch):
    from engine.errors import EngineError
    from engine.store.owners import this_process

    monkeypatch.setenv("MERGELENS_ENGINE", "apart")
    store, owner = own_service.store, this_process("service")
    found = client.ensure_service(store)
    assert (found.state, store.lease.status()) == ("absent", None)
    assert "who runs this app starts it" in found.message
    assert not (store.root / client.STARTING).exists()
    assert time.time() - store.lease.last_page() < 30
    monkeypatch.setattr(client, "BEGAN", time.time() + 60)
    store.lease.acquire(owner, "another version")
    store.lease.renew(owner, state="ready", busy=0)
    assert client.ensure_service(store).state == "outdated"
    assert not store.lease.status().stop
    monkeypatch.setenv("MERGELENS_ENGINE", "elsewhere")
    with pytest.raises(EngineError, match="write 'apart'"):
        client.ensure_service(store)


def test_an_idle_service_of_another_version_is_asked_to_go(own_service, monkeypatch):
    from engine.store.owners import this_process

    store, owner = own_service.store, this_process("service")
    store.lease.acquire(owner, "another version")
    store.lease.renew(owner, state="ready", busy=1)
    assert client.ensure_service(store).state == "outdated"
    assert not store.lease.status().stop
    store.lease.renew(owner, busy=0)
    monkeypatch.setattr(client, "BEGAN", time.time())  # as if this app were started after the engine
    assert client.ensure_service(store).state == "starting"
    assert store.lease.status().stop


def test_two_versions_on_one_store_agree_on_one_engine(startable, monkeypatch, caplog):
    """Two apps of different code, each asking every now and then."""
    store, starts = startable.store, []
    launch = client._launch
    monkeypatch.setattr(client, "_launch", lambda *given: starts.append(given) or launch(*given))
    states = {}

    def ask(version, began):
        monkeypatch.setattr(client, "code_version", lambda: version)
        monkeypatch.setattr(client, "BEGAN", began)
        monkeypatch.setenv("TOY_VERSION", version)
        states[version] = client.ensure_service(store)
        return states[version].state

    first = time.time()
    startable.until(lambda: ask("one", first) == "ready")
    second = time.time()
    agreed = {"ready", "outdated"}
    startable.until(lambda: {ask("one", first), ask("two", second)} == agreed)
    for _ in range(30):
        assert {ask("one", first), ask("two", second)} == agreed
        time.sleep(0.1)
    assert len(starts) == 2
    assert all(state.ready for state in states.values())
    assert caplog.text.count(client.OTHER) == 1


def test_a_start_that_fails_is_reported(own_service, monkeypatch):
    monkeypatch.setattr(client, "start_command", lambda: [sys.executable, "-c", "raise SystemExit('no such thing')"])
    assert client.ensure_service(own_service.store).state == "starting"
    own_service.until(lambda: client.ensure_service(own_service.store).state == "failed")
    assert "no such thing" in client.ensure_service(own_service.store).message


def test_a_calm_service_leaves_the_first_moments_to_the_page_unless_there_is_work(own_service):
    store = own_service.store
    own_service.launch("30", "60")
    own_service.until(lambda: client.service_state(store).state == "starting")
    time.sleep(1)
    assert store.lease.status().workers == 0
    run = own_service.submit(["write", {"text": "a"}, []])
    assert own_service.ended(run).state == "finished"


def test_a_calm_service_hears_that_it_is_not_needed(own_service):
    process = own_service.launch("30", "60")
    own_service.until(lambda: client.service_state(own_service.store).state == "starting")
    client.stop_service(own_service.store)
    assert process.wait(own_service.patience) == 0
