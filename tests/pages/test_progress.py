"""Rows at work: how long they still take."""

import time
from types import SimpleNamespace

import pytest

from pages.shared.progress import seconds_left


def row(fraction, elapsed, state="running"):
    return SimpleNamespace(fraction=fraction, elapsed=elapsed, state=state, started=time.time() - elapsed)


def test_time_left_follows_the_speed_so_far():
    assert seconds_left(row(0.25, 10.0)) == pytest.approx(30.0)
    assert seconds_left(row(0.5, 10.0)) == pytest.approx(10.0)


@pytest.mark.parametrize("found", [row(0.5, 1.0), row(0.01, 60.0), row(1.0, 60.0), row(0.5, 60.0, "cancelling")])
def test_nothing_is_foretold_from_too_little(found):
    assert seconds_left(found) is None
