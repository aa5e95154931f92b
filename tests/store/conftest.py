"""Fixtures that several files of these tests share."""

import pytest

from engine.store import Store


@pytest.fixture
def store():
    """The store that the environment names, which is the test's own."""
    return Store()
