"""Stores and run tables that several files of these tests share."""

import pytest

from engine.store import Store
from tests import database_server


@pytest.fixture
def store():
    """The store that the environment names, which is the test's own."""
    return Store()


@pytest.fixture(scope="session")
def postgresql():
    """A PostgreSQL server; tests that need one are skipped where none is installed."""
    if reason := database_server.why_not():
        pytest.skip(reason)
    with database_server.server() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.processes)])
def database_url(request, tmp_path):
    """URL of an empty database: a SQLite file, or a database of a PostgreSQL server."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'runs.sqlite'}"
        return
    with request.getfixturevalue("postgresql").database() as url:
        yield url
