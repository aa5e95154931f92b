"""Fixtures that several files of these tests share."""

import pytest

from engine.store import Store
from tests.made_checkpoints import clip, moved, visual_of
from tests.tiny_zoo import make_zoo


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return make_zoo(tmp_path_factory.mktemp("zoo") / "tiny")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def base():
    return visual_of(clip())


@pytest.fixture(scope="module")
def tuned(base):
    """Two experts; the first keeps the base's projection."""
    return {"cars": moved(base, 1, keep=("visual.proj",)), "dtd": moved(base, 2, keep=("visual.proj",))}
