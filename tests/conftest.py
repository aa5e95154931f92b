"""Threads are set, never inherited; every test has a store of its own."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("MERGELENS_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest


@pytest.fixture(autouse=True)
def _store_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("MERGELENS_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("MERGELENS_DATABASE_URL", raising=False)
