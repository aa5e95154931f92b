"""Threads are set, never inherited; a test has a store of its own and asks no other host; waiting gets a second try."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("MERGELENS_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest

from tests.off_host import sitecustomize

# No process of the tests asks anything of another host; sitecustomize is loaded by each that Python starts.
OFF_HOST = Path(tempfile.mkdtemp(prefix="mergelens-tests-")) / "asked"
os.environ[sitecustomize.RECORD] = str(OFF_HOST)
paths = [str(Path(sitecustomize.__file__).parent), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
sitecustomize.install()

WAITING = ("pages", "e2e", "service")  # folders whose tests wait for servers, workers and browsers


def pytest_collection_modifyitems(items):
    """Try a test of other processes once more when it fails; the summary names it (``-rR``)."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in WAITING:
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(autouse=True)
def _nothing_leaves_the_host():
    yield
    if OFF_HOST.exists():
        asked = OFF_HOST.read_text()
        OFF_HOST.unlink()
        pytest.fail(f"asked of other hosts:\n{asked}")


@pytest.fixture(autouse=True)
def _store_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("MERGELENS_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("MERGELENS_DATABASE_URL", raising=False)
