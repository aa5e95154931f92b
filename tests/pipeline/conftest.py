"""What several files of these tests start from."""

import pytest

from tests.made_checkpoints import clip, moved, visual_of


@pytest.fixture(scope="module")
def base():
    return visual_of(clip())


@pytest.fixture(scope="module")
def tuned(base):
    """Two experts; the first keeps the base's projection."""
    return {"cars": moved(base, 1, keep=("visual.proj",)), "dtd": moved(base, 2, keep=("visual.proj",))}
