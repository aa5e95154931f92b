"""Several experts of one task in a run: merged together, compared with the first; routing methods refuse them."""

import pytest
import torch
import yaml
from safetensors.torch import load_file

from engine.errors import RecipeError
from engine.pipeline.local import make_view, preflight_recipe, run_recipe
from engine.pipeline.offered import offered_views
from engine.pipeline.planners import plan_request
from engine.pipeline.run.findings import findings
from engine.pipeline.run.plan import plan_run
from engine.pipeline.views import view_of
from engine.recipe import parse_recipe
from engine.report import read_report
from engine.store import Store
from engine.zoo.folder import Zoo, own_experts
from pages.sections.story import headline
from tests.tiny_zoo import make_zoo

NAMES = ["alpha", "alpha-second", "beta"]
STOCK = {"method": "model_stock", "params": {"by_task": True, "scaling": 0.4, "clamp": False}}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """Three tasks, and a second expert of the first."""
    folder = make_zoo(tmp_path_factory.mktemp("several") / "tiny", experts=("alpha", "beta", "gamma"))
    file = folder / "zoo.yaml"
    manifest = yaml.safe_load(file.read_text())
    gamma = manifest["experts"].pop()
    manifest["experts"].append({**gamma, "name": "alpha-second", "task": "alpha", "method": "second"})
    file.write_text(yaml.safe_dump(manifest, sort_keys=False))
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several-store")
    return Store(folder, database_url=f"sqlite:///{folder / 'runs.sqlite'}")


def asked(zoo, names=NAMES, merge=STOCK, **more):
    return parse_recipe({"zoo": str(zoo), "experts": list(names), "merge": merge, **more})


@pytest.fixture(scope="module")
def made(zoo, store, tmp_path_factory):
    out = tmp_path_factory.mktemp("several-out") / "run"
    run_recipe(asked(zoo, calibrators=[{"method": "prob_surgery", "params": {"steps": 20}}]), store, out=out)
    return out


def test_a_tasks_own_expert_is_the_first_that_is_named(zoo):
    manifest = Zoo.open(str(zoo)).manifest
    assert own_experts(manifest, NAMES) == {"alpha": "alpha", "beta": "beta"}
    assert own_experts(manifest, reversed(NAMES)) == {"beta": "beta", "alpha": "alpha-second"}


def test_the_run_merges_all_and_compares_with_the_first(zoo, made, store):
    report = read_report(made)
    assert list(report.experts) == NAMES
    assert {task: report.tasks[task].expert for task in report.tasks} == {
        "alpha": "alpha",
        "beta": "beta",
        "outside": None,
    }
    assert [report.tasks[task].others for task in report.tasks] == [("alpha-second",), (), ()]
    assert headline(report).startswith("The first expert of each task reaches **")
    assert "on it. All three merged by Model Stock, one model" in headline(report)
    alone = run_recipe(asked(zoo, ["alpha", "beta"], {"method": "task_arithmetic"}), store)
    assert report.accuracy["expert"] == alone.accuracy["expert"]
    assert report.accuracy["prob_surgery"].keys() == {"alpha", "beta"}
    merged, base = load_file(made / "merged.safetensors"), load_file(zoo / "base.safetensors")
    one, two, other = (load_file(zoo / "experts" / f"{name}.safetensors") for name in ("alpha", "gamma", "beta"))
    name = "visual.transformer.resblocks.0.mlp.c_fc.weight"
    one, two, other = ((model[name] - base[name]).double() for model in (one, two, other))
    cosine = torch.nn.functional.cosine_similarity(one.flatten(), two.flatten(), dim=0)
    wanted = base[name].double() + 0.4 * (2 * cosine / (1 + cosine) * (one + two) / 2 + other)
    torch.testing.assert_close(merged[name].double(), wanted, rtol=1e-5, atol=1e-6)


def test_it_is_said_before_and_in_the_form(zoo, store):
    recipe = asked(zoo)
    (said,) = findings(recipe, Zoo.open(str(zoo)))
    assert (said.level, said.text) == (
        "warning",
        "2 experts of the task 'alpha' are merged (alpha, alpha-second); the run compares its states with the first, "
        "alpha.",
    )
    assert said.text in [found.text for found in preflight_recipe(recipe, store).findings]


@pytest.mark.parametrize("method", ["emr", "tall", "twin", "wemoe"])
def test_a_merge_of_several_models_takes_one_of_a_task(zoo, store, method):
    with pytest.raises(RecipeError, match=r"takes one expert of a task; the recipe names 2 of 'alpha' \(alpha, "):
        plan_run(asked(zoo, merge={"method": method}), store)


def of_view(store, zoo, name, **settings):
    request = {"recipe": asked(zoo).model_dump(mode="json"), "images": 8, **settings}
    return make_view(view_of(name), view_of(name).request.parse(request), store)


@pytest.mark.parametrize("name", ["stitching", "transplant"])
def test_the_control_is_an_expert_of_another_task(zoo, store, name):
    document = view_of(name).read(of_view(store, zoo, name))
    assert {task: part["other"] for task, part in document["tasks"].items()} == {"alpha": "beta", "beta": "alpha"}


def test_the_loss_around_experts_is_followed_along_those_of_other_tasks(zoo, store):
    settings = {"points": 3, "draws": 1}
    around = {
        task: view_of("sharpness").read(of_view(store, zoo, "sharpness", task=task, **settings))["others"]
        for task in ("alpha", "beta")
    }
    assert around == {"alpha": ["beta"], "beta": ["alpha", "alpha-second"]}
    alone = asked(zoo, NAMES[:2]).model_dump(mode="json")
    with pytest.raises(RecipeError, match="two experts or more of different tasks"):
        plan_request("sharpness", {"recipe": alone, "images": 8}, store)


def test_every_view_that_a_page_opens_with_can_be_made(store, made):
    offered = offered_views(read_report(made))
    assert len(offered) > 20
    for view, request in offered:
        assert any(make_view(view, request, store).iterdir()), view.name
