"""Threads are set, never inherited; every test has a store of its own; waiting on other processes gets a second try."""

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("MERGELENS_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest

WAITING = ("pages", "e2e", "service")  # folders whose tests wait for servers, workers and browsers


def pytest_collection_modifyitems(items):
    """Try a test of other processes once more when it fails; the summary names it (``-rR``)."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in WAITING:
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(autouse=True)
def _store_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("MERGELENS_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("MERGELENS_DATABASE_URL", raising=False)
