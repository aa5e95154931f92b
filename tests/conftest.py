"""Threads are set, never inherited; a test has a store of its own and asks no other host; tests are sorted by need."""

import atexit
import gc
import os
import re
import tempfile
from functools import cache
from itertools import count
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("MERGELENS_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import pytest

from engine.ending import end_early
from tests import database_server
from tests.off_host import sitecustomize

# No process of the tests asks anything of another host; sitecustomize is loaded by each that Python starts.
OFF_HOST = Path(tempfile.mkdtemp(prefix="mergelens-tests-")) / "asked"
os.environ[sitecustomize.RECORD] = str(OFF_HOST)
paths = [str(Path(sitecustomize.__file__).parent), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
sitecustomize.install()

gc.disable()  # until all is collected: hardly anything of that is garbage, and looking for it takes a third of the time

PROCESSES = ("service", "e2e")  # rooms whose tests wait for servers, workers and browsers
SHARED = re.compile(r"^def .*\b(app_address|app_page|service)[,)]", re.MULTILINE)  # what is served once for a room
WHOLE = ("pages", "pipeline", "fuzz")  # rooms whose tests go the whole way through the engine or the app
NUMBERS = count()  # of tests that ask for no folder


def pytest_itemcollected(item):
    """Mark a test by what it needs.

    Tests of other processes are tried once more when they fail (the summary names them) and are left out of the
    quick suite, as are those that go the whole way.
    """
    room = item.path.relative_to(Path(__file__).parent).parts[0]
    if room in PROCESSES:
        item.add_marker("processes")
        item.add_marker(pytest.mark.flaky(reruns=1))
    if room in WHOLE:
        item.add_marker("whole")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Spread files over workers, since a file shares what it makes; files that share a server stay on one."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return scope_of(nodeid.partition("::")[0])

    return ByFile(config, log)


@cache
def scope_of(file):
    """Return what is run on one worker together with a file: its room where its tests share a server, else itself."""
    room = Path(file).parts[1]
    text = (Path(__file__).parents[1] / file).read_text("utf-8")
    return room if room in PROCESSES and SHARED.search(text) else file


def pytest_collection_modifyitems(items):
    """Begin with what takes long: the files of other processes, those with slow tests, those that go the whole way."""
    slow = {item.path for item in items if "slow" in item.keywords}

    def rank(item):
        return "processes" not in item.keywords, item.path not in slow, "whole" not in item.keywords

    items.sort(key=rank)


def pytest_collection_finish():
    """Look for garbage again, but not among what was collected, which stays to the end of Python.

    There libraries complain of what they still hold.
    """
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)


def pytest_configure(config):
    """Have the workers that tests are spread over end without taking apart what they have imported."""
    if hasattr(config, "workerinput"):
        end_early()


@pytest.fixture(autouse=True)
def _nothing_leaves_the_host():
    yield
    if OFF_HOST.exists():
        asked = OFF_HOST.read_text()
        OFF_HOST.unlink()
        pytest.fail(f"asked of other hosts:\n{asked}")


@pytest.fixture(autouse=True)
def _store_of_its_own(request, tmp_path_factory, monkeypatch):
    if "tmp_path" in request.fixturenames:
        folder = request.getfixturevalue("tmp_path")
    else:  # nobody asks for a folder, which would be made for nothing
        folder = tmp_path_factory.getbasetemp() / f"of-{next(NUMBERS)}"
    monkeypatch.setenv("MERGELENS_STORE", str(folder / "store"))
    monkeypatch.delenv("MERGELENS_DATABASE_URL", raising=False)


@pytest.fixture(scope="session")
def postgresql():
    """A PostgreSQL server; tests that need one are skipped where none is installed."""
    if reason := database_server.why_not():
        pytest.skip(reason)
    with database_server.server() as server:
        yield server
