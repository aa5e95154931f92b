"""Requests for previews: what is said of their merges before anything is measured, and what their time depends on."""

from engine.catalog import MERGE_METHODS
from engine.pipeline.planners import plan_request
from engine.pipeline.preview.request import KIND, PreviewRequest, chance_of, rate_name, trained_parts
from engine.recipe import parse_recipe

PLAIN = {"method": "task_arithmetic"}


def recipe(zoo, **changes):
    return parse_recipe({"zoo": str(zoo), "merge": PLAIN, **changes})


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
        return rate_name(recipe(zoo, merge={"method": "wudi", "params": {"steps": steps, **params}}), "tiny")

    def by_images(images):
        return rate_name(recipe(zoo, transforms=[{"method": "repair", "params": {"images": images}}]), "tiny")

    assert by_steps(10) != by_steps(1000)
    assert by_steps(10, learning_rate=1e-3) == by_steps(10), "which leaves the work as it is"
    assert by_images(2) != by_images(200)
