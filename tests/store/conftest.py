"""Stores and run tables that several files of these tests share."""

import pytest

from engine.store import Store


@pytest.fixture
def store():
    """The store that the environment names, which is the test's own."""
    return Store()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.processes)])
def database_url(request, tmp_path):
    """URL of an empty database: a SQLite file, or a database of a PostgreSQL server."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'runs.sqlite'}"
        return
    with request.getfixturevalue("postgresql").database() as url:
        yield url
