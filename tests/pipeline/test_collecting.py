"""Garbage collection as a row of the run table."""

import pytest

from engine.errors import RecipeError
from engine.pipeline.executor import run_inline
from engine.pipeline.planners import plan_request
from engine.store import Store, read_collected


def test_a_collection_is_work_like_any_other(tmp_path):
    store = Store(tmp_path)
    with store.create("ab" * 32, step="features") as folder:
        (folder / "file").write_bytes(b"x" * 1000)
    request = {"asked": 1.0, "days": 0, "dry": True}
    found = read_collected(run_inline(plan_request("gc", request, store), store))
    assert (found.dry, found.artefacts) == (True, 0)  # it is younger than an hour
    assert store.find("ab" * 32) is not None
    with pytest.raises(RecipeError, match="days"):
        plan_request("gc", {**request, "days": -1}, store)
    keys = {plan_request("gc", {**request, "asked": moment}, store).result for moment in (1.0, 2.0)}
    assert len(keys) == 2
