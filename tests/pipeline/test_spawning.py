"""Two runs of one training that part at a step: the same until then, and the path between them."""

import json

import pytest

from engine.errors import EngineError
from engine.figures.spawning import spawning_figure
from engine.pipeline.executor import run_inline
from engine.pipeline.planners import plan_request
from engine.pipeline.tools import Silent
from engine.pipeline.zoos.request import FinetuneConfig
from engine.recipe import parse_recipe
from engine.store import Store
from tests.pipeline.test_joint import zoo  # noqa: F401
from tests.tiny_text_zoo import make_text_zoo


def asked(folder, **settings):
    recipe = parse_recipe({"zoo": str(folder)})
    return {"recipe": recipe.model_dump(mode="json"), "steps": 8, "batch_size": 8, "images": 8, "points": 3, **settings}


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_runs_that_part_later_end_nearer_to_each_other(zoo, tmp_path, kind):  # noqa: F811
    zoo = zoo if kind == "images" else make_text_zoo(tmp_path / "texts", experts=("alpha", "beta"), train=24)
    store = Store(tmp_path / "store")
    plan = plan_request("spawning", asked(zoo, task="beta", parts=[0, 7]), store)
    run_inline(plan, store, Silent())
    document = json.loads((store.find(plan.result) / "spawning.json").read_text())
    early, late = document["parts"]
    assert (early["part"], late["part"]) == (0, 7)
    for part in (early, late):
        assert part["instability"] == pytest.approx(max(part["error"]) - (part["error"][0] + part["error"][-1]) / 2)
        assert len(part["loss"]) == 3
    assert abs(late["loss"][0] - late["loss"][-1]) < abs(early["loss"][0] - early["loss"][-1])
    assert early["loss"][0] != early["loss"][-1]
    drawing = spawning_figure(document, "light")
    assert drawing.table["part"].tolist() == [0, 7]


def test_pairs_are_trainings_by_other_seeds_and_their_mean_counts(zoo, tmp_path):  # noqa: F811
    store = Store(tmp_path / "store")
    found = []
    for pairs in (1, 2):
        plan = plan_request("spawning", asked(zoo, task="beta", parts=[0, 4], pairs=pairs), store)
        run_inline(plan, store, Silent())
        found.append(json.loads((store.find(plan.result) / "spawning.json").read_text()))
    (alone, _), (both, _) = (document["parts"] for document in found)
    first, second = both["pairs"]
    assert alone["pairs"] == [first]
    assert alone["loss"] == first["loss"] != second["loss"]
    assert both["loss"] == pytest.approx([sum(pair) / 2 for pair in zip(first["loss"], second["loss"], strict=True)])
    assert both["instability"] == pytest.approx((first["instability"] + second["instability"]) / 2)
    drawing = spawning_figure(found[1], "light")
    assert drawing.table["pairs"].tolist() == [2, 2]
    assert len(drawing.figure.data[0].x) == 4
    assert "means of 2 pairs" in drawing.alt
    assert "pairs" not in spawning_figure(found[0], "light").table


def test_a_training_that_does_not_part_is_named_as_before():
    config = FinetuneConfig(steps=30)
    assert "part" not in config.resolved(10, 10)
    assert FinetuneConfig(steps=30, part=3, after=2).resolved(10, 10) == {
        **config.resolved(10, 10),
        "part": 3,
        "after": 2,
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parts": [8]}, "parting steps from 0 to 7"),
        ({"parts": [0], "pairs": 0}, "greater than or equal to 1"),
        ({"task": "beta", "parts": [0], "batch_size": 4096}, "Choose a smaller batch size"),
        ({"task": "gamma", "parts": [0]}, "No expert's task with images is named 'gamma'"),
    ],
)
def test_what_cannot_part_is_refused(zoo, tmp_path, settings, message):  # noqa: F811
    with pytest.raises(EngineError, match=message):
        plan_request("spawning", asked(zoo, **settings), Store(tmp_path / "store"))
