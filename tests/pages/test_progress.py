"""Work under way: how long it still takes."""

import time
from types import SimpleNamespace

import pytest

from engine.rounding import seconds_left
from pages.shared import progress


def test_time_left_follows_the_speed_so_far():
    assert seconds_left(0.25, 10.0) == pytest.approx(30.0)
    assert seconds_left(0.5, 10.0) == pytest.approx(10.0)


@pytest.mark.parametrize(("fraction", "elapsed"), [(0.5, 1.0), (0.01, 60.0), (1.0, 60.0)])
def test_nothing_is_foretold_from_too_little(fraction, elapsed):
    assert seconds_left(fraction, elapsed) is None


@pytest.mark.parametrize(("state", "told"), [("running", True), ("cancelling", False)])
def test_a_row_tells_the_time_left_while_it_runs(state, told, monkeypatch):
    monkeypatch.setattr(progress, "keep_service", str)
    now = time.time() - 60
    row = SimpleNamespace(fraction=0.5, elapsed=60.0, state=state, started=now, created=now, kind="run", id="a")
    assert ("left" in progress._elapsed(row)) == told
