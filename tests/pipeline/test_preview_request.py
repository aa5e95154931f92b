"""Requests for previews: what is said of their merges before anything is measured, and what their time depends on."""

from engine.catalog import MERGE_METHODS
from engine.pipeline.planners import plan_request
from engine.pipeline.preview.request import KIND, PreviewRequest, chance_of, rate_name, trained_parts
from engine.recipe import parse_recipe
from engine.zoo.folder import Zoo
from tests.tiny_zoo import make_zoo

PLAIN = {"method": "task_arithmetic"}


def recipe(zoo, **changes):
    return parse_recipe({"zoo": str(zoo), "merge": PLAIN, **changes})


def name_of(zoo, **changes):
    return rate_name(recipe(zoo, **changes), Zoo.open(str(zoo)))


def said(store, asked):
    return plan_request(KIND, asked.model_dump(mode="json"), store).steps[-1].params.chance


def test_what_is_drawn_at_random_is_said_of_both_sides(zoo, store):
    plain, drawn = recipe(zoo), recipe(zoo, transforms=[{"method": "dare"}], seeds=[7])
    shown, difference = "DARE in that of the run shown, with seed 7", "Part of the difference is chance."
    assert said(store, PreviewRequest(recipe=plain, against=drawn)) == f"Drawn at random: {shown}. {difference}"
    own = drawn.model_copy(update={"seeds": (2, 7)})
    mine = "Drawn at random: DARE in this merge, with seed 2"
    both = PreviewRequest(recipe=own, against=drawn)
    assert said(store, both) == chance_of(both, compared=True) == f"{mine}; {shown}. {difference}"
    alone = f"{mine}. Another seed gives other numbers."
    assert said(store, PreviewRequest(recipe=own)) == chance_of(both, compared=False) == alone
    assert said(store, PreviewRequest(recipe=plain)) == ""


def test_methods_that_learn_are_named(zoo):
    learning = next(row for row in MERGE_METHODS.values() if row.learns)
    assert trained_parts(recipe(zoo, merge={"method": learning.name})) == [learning.title]
    assert not trained_parts(recipe(zoo))


def test_the_time_of_one_amount_of_work_is_not_foretold_of_another(zoo):
    def by_steps(steps, **params):
        return name_of(zoo, merge={"method": "wudi", "params": {"steps": steps, **params}})

    def by_images(images):
        return name_of(zoo, transforms=[{"method": "repair", "params": {"images": images}}])

    assert by_steps(10) != by_steps(1000)
    assert by_steps(10, learning_rate=1e-3) == by_steps(10), "which leaves the work as it is"
    assert by_images(2) != by_images(200)


def test_the_time_on_one_zoo_is_not_foretold_of_another_of_its_name(tmp_path):
    zoo = make_zoo(tmp_path / "zoo", images=6)
    before = name_of(zoo)
    assert name_of(zoo, experts=[{"name": name} for name in ("alpha", "beta", "gamma")]) == before, "which are all"
    assert name_of(zoo, experts=[{"name": "alpha"}]) != before
    assert name_of(make_zoo(zoo, images=6, experts=("alpha", "beta"))) != before
    assert name_of(make_zoo(zoo, images=4)) != before
    assert name_of(make_zoo(zoo, images=6)) == before
