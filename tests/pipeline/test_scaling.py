"""Accuracy over λ by both encoders, against models that are put together by hand."""

import json

import numpy as np
import pytest
import torch

from engine.analysis.interpolation import accuracy_and_loss
from engine.errors import RecipeError
from engine.features.linearised import Linearised
from engine.pipeline.executor import run_inline
from engine.pipeline.planners import plan_request
from engine.pipeline.run.encoding import encoder_of
from engine.pipeline.tools import Silent
from engine.recipe import parse_recipe
from engine.zoo.encoders.backbone import normalised, resized
from engine.zoo.folder import Zoo

SCALINGS = [0.0, 0.5, 1.0, 2.0]


@pytest.fixture(scope="module")
def request_(zoo):
    recipe = parse_recipe({"zoo": str(zoo), "experts": ["alpha", {"name": "beta", "weight": 0.5}]})
    return {"recipe": recipe.model_dump(mode="json"), "images": 8, "scalings": SCALINGS}


@pytest.fixture(scope="module")
def found(request_, store):
    plan = plan_request("scaling", request_, store)
    run_inline(plan, store, Silent())
    return json.loads((store.find(plan.result) / "scaling.json").read_text())["tasks"]


def by_hand(zoo_folder, scaling, experts=(("alpha", 1.0), ("beta", 0.5))):
    """Accuracies on alpha's first images of both kinds of model, from modules with summed weights."""
    zoo = Zoo.open(str(zoo_folder))
    base = encoder_of(zoo, "pretrained")
    start = dict(base.named_parameters())
    merged = encoder_of(zoo, "pretrained")
    with torch.no_grad():
        for name, weight in experts:
            tuned = dict(encoder_of(zoo, name).named_parameters())
            for key, parameter in merged.named_parameters():
                parameter.add_(scaling * weight * (tuned[key] - start[key]))
    return merged, Linearised(merged, start)


def test_both_curves_are_those_of_models_put_together(found, zoo):
    opened = Zoo.open(str(zoo))
    head = opened.heads(["alpha"])[0]["alpha"]
    table = found["alpha"]
    assert table["scalings"] == SCALINGS
    assert table["images"] == 8
    chosen = np.sort(np.random.default_rng(0).choice(24, 8, replace=False))
    pixels = resized(opened.data["alpha"].samples("test", chosen), opened.preprocess())
    labels = torch.as_tensor(opened.data["alpha"].labels("test")[chosen]).long()
    images = normalised(pixels, opened.preprocess())
    for place, scaling in enumerate(SCALINGS):
        for kind, model in zip(("standard", "linearised"), by_hand(zoo, scaling), strict=True):
            with torch.no_grad():
                accuracy, loss = accuracy_and_loss(model(images), head, labels)
            assert table[kind]["loss"][place] == pytest.approx(loss, rel=1e-4), (kind, scaling)
            assert table[kind]["accuracy"][place] == pytest.approx(accuracy)
    without = by_hand(zoo, 1.0, (("beta", 0.5),))[1]
    with torch.no_grad():
        assert table["without"][0] == pytest.approx(accuracy_and_loss(without(images), head, labels)[0])


def test_ends_and_the_distance_from_the_linear_regime(found):
    for table in found.values():
        assert table["standard"]["loss"][0] == pytest.approx(table["linearised"]["loss"][0], rel=1e-5), "the base"
        assert 0 < table["departure"] < 5
        assert set(table["expert"]) == {"standard", "linearised"}
    assert found["alpha"]["standard"]["loss"][3] != pytest.approx(found["alpha"]["linearised"]["loss"][3], rel=1e-3)


def test_runs_of_other_merges_share_the_curves(request_, zoo, store):
    from engine.pipeline.views.scaling import SCALING

    plain = parse_recipe(request_["recipe"])
    other = plain.model_copy(
        update={"merge": parse_recipe({"merge": {"method": "ties"}}).merge, "forward": "linearised"}
    )
    asked = [SCALING.ask(recipe, images=8, scalings=SCALINGS).model_dump(mode="json") for recipe in (plain, other)]
    assert len({plan_request("scaling", request, store).result for request in asked}) == 1


@pytest.mark.parametrize("scalings", [[], [1.0, 0.5], [0.0, 9.0], [0.5, 0.5]])
def test_coefficients_that_make_no_curve_are_refused(scalings, request_, store):
    with pytest.raises(RecipeError, match="ascending order"):
        plan_request("scaling", {**request_, "scalings": scalings}, store)
