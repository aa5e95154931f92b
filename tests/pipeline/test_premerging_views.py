"""Views on experts before merging: by recipe, disentanglement, sharpness, subspaces; on a tiny zoo."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from engine.analysis.interpolation import accuracy_and_loss
from engine.errors import RecipeError
from engine.figures.by_recipe import best_table, by_recipe_figure, left_out_table
from engine.figures.connection import barriers, connection_figure, units_table, zip_figure
from engine.figures.disentanglement import disentanglement_figure, inside
from engine.figures.energy import energy_figure, images_used
from engine.figures.sharpness import sharpness_figure
from engine.pipeline.executor import run_inline
from engine.pipeline.planners import plan_request
from engine.pipeline.run.encoding import encoder_of
from engine.pipeline.tools import Silent
from engine.pipeline.views.by_recipe import _normalised
from engine.recipe import parse_recipe
from engine.store import Store
from engine.zoo.encoders.backbone import normalised, resized
from engine.zoo.folder import Zoo
from tests.tiny_zoo import make_zoo

SCALINGS = [0.0, 0.5, 1.0]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """A tiny zoo with experts of two tasks by two recipes; the second ones lie twice as far out."""
    folder = make_zoo(tmp_path_factory.mktemp("zoo") / "tiny", experts=("alpha", "beta"))
    base = load_file(folder / "base.safetensors")
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    for name in ("alpha", "beta"):
        own = load_file(folder / "experts" / f"{name}.safetensors")
        further = {key: base[key] + 2 * (own[key] - base[key]) for key in own}
        save_file(further, folder / "experts" / f"{name}-saft.safetensors")
        entry = {"name": f"{name}-saft", "task": name, "weights": f"experts/{name}-saft.safetensors"}
        document["experts"].append({**entry, "method": "saft"})
    (folder / "zoo.yaml").write_text(yaml.safe_dump(document))
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def view(zoo, store):
    def make(name, experts="all", **settings):
        recipe = parse_recipe({"zoo": str(zoo), "experts": experts})
        plan = plan_request(name, {"recipe": recipe.model_dump(mode="json"), "images": 8, **settings}, store)
        run_inline(plan, store, Silent())
        return json.loads((store.find(plan.result) / f"{name}.json").read_text())

    return make


def by_hand(zoo_folder, task, vectors):
    """Accuracy and loss on a task's first images of the base plus multiples of experts' task vectors."""
    zoo = Zoo.open(str(zoo_folder))
    start, model = dict(encoder_of(zoo, "pretrained").named_parameters()), encoder_of(zoo, "pretrained")
    with torch.no_grad():
        for name, value in vectors.items():
            tuned = dict(encoder_of(zoo, name).named_parameters())
            for key, parameter in model.named_parameters():
                parameter.add_(value * (tuned[key] - start[key]))
        chosen = np.sort(np.random.default_rng(0).choice(24, 8, replace=False))
        pixels = resized(zoo.data[task].samples("test", chosen), zoo.preprocess())
        labels = torch.as_tensor(zoo.data[task].labels("test")[chosen]).long()
        features = model(normalised(pixels, zoo.preprocess()))
        return features, *accuracy_and_loss(features, zoo.heads([task])[0][task], labels)


def test_recipes_are_added_up_each_by_itself(view, zoo):
    document = view("by_recipe", scalings=SCALINGS)
    assert list(document["recipes"]) == ["standard", "saft"]
    for name, suffix in (("standard", ""), ("saft", "-saft")):
        found = document["recipes"][name]
        assert found["experts"] == {"alpha": f"alpha{suffix}", "beta": f"beta{suffix}"}
        for place, scaling in enumerate(SCALINGS):
            both = {f"alpha{suffix}": scaling, f"beta{suffix}": scaling}
            merged = [by_hand(zoo, task, both)[1] for task in ("alpha", "beta")]
            own = [by_hand(zoo, task, {f"{task}{suffix}": 1.0})[1] for task in ("alpha", "beta")]
            assert found["standard"]["accuracy"][place] == pytest.approx(sum(merged) / 2)
            expected = sum(100 * one / max(two, 1e-9) for one, two in zip(merged, own, strict=True)) / 2
            assert found["standard"]["normalised"][place] == pytest.approx(expected)
    # twice as far out is the same line: λ = 0.5 of the one is λ = 1 of the other
    standard, far = (document["recipes"][name]["linearised"]["accuracy"] for name in ("standard", "saft"))
    assert far[1] == standard[2]
    table = best_table(document)
    assert len(table) == 4
    drawing = by_recipe_figure(document, "light")
    assert len(drawing.figure.data) == 8
    assert len(drawing.table) == 2 * 2 * len(SCALINGS)
    tables = view("scaling", scalings=SCALINGS)["tasks"]
    for left, other in (("alpha", "beta"), ("beta", "alpha")):
        changed = {}
        for task, table in tables.items():
            whole = table["linearised"]["accuracy"][SCALINGS.index(1.0)]
            changed[task] = table["without"][table["experts"].index(left)] - whole
        expected = {"own": changed[left], "others": changed[other]}
        assert document["recipes"]["standard"]["left_out"][left] == pytest.approx(expected)
    assert len(left_out_table(document)) == 4
    assert view("by_recipe", scalings=[0.0, 0.5])["recipes"]["standard"]["left_out"] == {}
    only = view("by_recipe", scalings=SCALINGS, recipes=["saft"])
    assert only["recipes"] == {"saft": document["recipes"]["saft"]}


def test_a_recipe_without_experts_of_all_tasks_is_refused(view):
    with pytest.raises(RecipeError, match="no expert by the recipe 'lora'"):
        view("by_recipe", recipes=["lora"])


def test_a_task_without_images_and_an_expert_that_is_never_right_have_no_part_of_the_curves(zoo, tmp_path, store):
    folder = tmp_path / "bare"
    shutil.copytree(zoo, folder)
    document = yaml.safe_load((folder / "zoo.yaml").read_text())
    document["tasks"][1].pop("data")
    (folder / "zoo.yaml").write_text(yaml.safe_dump(document))
    recipe = parse_recipe({"zoo": str(folder), "experts": ["alpha", "beta"]})
    plan = plan_request("by_recipe", {"recipe": recipe.model_dump(mode="json"), "images": 8, "scalings": [1.0]}, store)
    run_inline(plan, store, Silent())
    found = json.loads((store.find(plan.result) / "by_recipe.json").read_text())["recipes"]["standard"]
    assert found["left_out"] == {}, "there are no other tasks"
    curve = {"accuracy": [0.0, 25.0]}
    tables = [{"expert": {"standard": 50.0}, "standard": curve, "scalings": [0, 1]} for _ in range(2)]
    assert _normalised(tables, "standard") == [0, 50]
    tables[1]["expert"]["standard"] = 0.0
    assert _normalised(tables, "standard") == [None, None]
    never = {**found, "standard": {**found["standard"], "normalised": [None]}}
    assert best_table({"scalings": [1.0], "recipes": {"standard": never}})["scaling"].tolist() == [1, 1]


def test_defaults_of_a_pair_are_two(view):
    assert view("disentanglement", second="alpha", points=3)["experts"] == ["beta", "alpha"]
    found = view("connection", end="alpha", points=3, method="weight_matching")
    assert (found["start"], found["end"]) == ("beta", "alpha")


def test_curves_of_one_task_are_its_own(view):
    every, one = (view("scaling", scalings=SCALINGS, task=task)["tasks"] for task in ("", "beta"))
    assert one == {"beta": every["beta"]}
    assert view("by_recipe", scalings=SCALINGS, task="beta")["recipes"]["standard"]["left_out"] == {}
    with pytest.raises(RecipeError, match="Did you mean 'beta'"):
        view("scaling", task="beat")
    for name in ("disentanglement", "connection", "energy"):
        with pytest.raises(RecipeError, match="task"):
            view(name, task="beta")


def test_an_expert_that_takes_no_part_is_still_itself(view):
    without = [{"name": "alpha", "weight": 0.0}, {"name": "beta"}]
    tables = [view("scaling", experts, scalings=SCALINGS)["tasks"]["alpha"] for experts in (["alpha", "beta"], without)]
    assert tables[0]["expert"] == tables[1]["expert"]
    assert tables[0]["departure"] == pytest.approx(tables[1]["departure"])
    assert tables[1]["departure"] > 0


def test_disentanglement_is_that_of_models_put_together(view, zoo):
    document = view("disentanglement", points=3, reach=1.0)
    assert document["alphas"] == [-1.0, 0.0, 1.0]
    total = 0.0
    for task in ("alpha", "beta"):
        alone = by_hand(zoo, task, {task: 1.0})[0]
        both = by_hand(zoo, task, {"alpha": 1.0, "beta": 1.0})[0]
        total += float((alone - both).abs().mean())
    assert document["standard"]["features"][2][2] == pytest.approx(total, rel=1e-4)
    for forward in ("standard", "linearised"):
        assert document[forward]["disagreement"][1][1] == 0
        assert document[forward]["features"][1][1] == 0
    linear = np.array(document["linearised"]["features"])
    assert linear[2][2] == pytest.approx(linear[0][0], rel=1e-4), "linear features are odd around the base"
    drawing = disentanglement_figure(document, ["Alpha", "Beta"], "features", "dark")
    assert len(drawing.table) == 2 * 9
    heads = drawing.figure.layout.annotations
    assert {note.xanchor for note in heads} == {"center"}, "left to itself one stands right of its middle, one left"
    assert inside(document, "features")["standard"] == pytest.approx(
        np.array(document["standard"]["features"])[1:, 1:].mean()
    )
    wide = {**document, "alphas": [-2.0, 0.0, 2.0]}
    assert inside(wide, "features") == {}, "the origin alone is inside, where ξ is 0"
    assert disentanglement_figure(wide, ["Alpha", "Beta"], "features", "dark").alt.endswith("no value was measured.")
    assert inside({**document, "alphas": [-5.0, -1.7, 1.7]}, "features") == {}


def test_disentanglement_has_controls_and_each_tasks_part(view, zoo):
    plain, random, twice = (
        view("disentanglement", points=3, reach=1.0, by_task=True, **settings)
        for settings in ({}, {"instead": "random"}, {"instead": "first"})
    )
    for document in (plain, random, twice):
        for forward in ("standard", "linearised"):
            parts = np.array(document["summands"][forward]["features"])
            assert np.array(document[forward]["features"]) == pytest.approx(parts.sum(axis=0))
            assert parts[0][:, 1] == pytest.approx(0), "without the second vector nothing changes on the first's images"
    # f_lin moves as far along a vector from anywhere, so on the first task the second column is the vector's own effect
    base, own, double = (by_hand(zoo, "alpha", {"alpha": value})[0] for value in (0.0, 1.0, 2.0))
    assert twice["summands"]["standard"]["features"][0][2][2] == pytest.approx(
        float((double - own).abs().mean()), rel=1e-4
    )
    assert random["summands"]["standard"]["features"][0][2][2] != plain["summands"]["standard"]["features"][0][2][2]
    assert float((own - base).abs().mean()) > 0
    assert "summands" not in view("disentanglement", points=3, reach=1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"first": "alpha", "second": "alpha"}, "choose two"),
        ({"first": "gamma"}, "no expert 'gamma'"),
        ({"experts": ["alpha"]}, "Two experts"),
    ],
)
def test_pairs_that_make_no_map_are_refused(view, settings, message):
    with pytest.raises(RecipeError, match=message):
        view("disentanglement", **settings)


def test_the_loss_around_experts_is_that_of_models_moved_by_hand(view, zoo):
    document = view("sharpness", task="beta", points=3, draws=2)
    assert list(document["recipes"]) == ["standard", "saft"]
    assert document["others"] == ["alpha"]
    for name, expert in (("standard", "beta"), ("saft", "beta-saft")):
        found = document["recipes"][name]
        for place, distance in enumerate(document["distances"]):
            loss = by_hand(zoo, "beta", {expert: 1.0, "alpha": distance})[2]
            assert found["others"][0][place] == pytest.approx(loss, rel=1e-4)
        assert len(found["random"]) == 2
        assert found["random"][0] != found["random"][1]
        assert all(curve[0] == pytest.approx(found["others"][0][0], rel=1e-6) for curve in found["random"])
    drawing = sharpness_figure(document, "light")
    assert len(drawing.figure.data) == 4
    again = view("sharpness", task="beta", points=3, draws=2, seed=1)
    assert again["recipes"]["saft"]["others"] == document["recipes"]["saft"]["others"]
    assert again["recipes"]["saft"]["random"] != document["recipes"]["saft"]["random"]
    with pytest.raises(RecipeError, match="two experts or more"):
        view("sharpness", experts=["alpha"])


def test_energy_of_a_subspace_is_the_share_of_the_inputs_in_it(view):
    from engine.analysis.energy import energy_share, input_directions, orthonormal

    rows = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)).double()
    moment = rows.T @ rows
    directions = orthonormal(torch.randn(2, 6, generator=torch.Generator().manual_seed(1)))
    torch.testing.assert_close(directions @ directions.T, torch.eye(2).double())
    expected = float((rows @ directions.T).square().sum() / rows.square().sum())
    assert energy_share(directions, moment) == pytest.approx(expected)
    assert energy_share(torch.eye(6).double(), moment) == pytest.approx(1)
    update = torch.outer(torch.ones(4), torch.tensor([0.0, 3.0, 0.0]))
    assert input_directions(update, 1).abs().tolist() == [[0.0, 1.0, 0.0]]
    assert len(input_directions(update, 8)) == 1, "an update of rank 1 reads one direction"
    assert input_directions(torch.zeros(4, 3), 2).shape == (0, 3)
    assert energy_share(input_directions(torch.zeros(4, 6), 2), moment) == 0
    fewer = view("energy", rank=4, images=2000)
    assert images_used(fewer) == str(fewer["images"]) == "24", "what there is, not what was asked for"
    assert images_used({"images": [12, 30, 60]}) == "12 to 60"
    document = view("energy", rank=4)
    assert document["images"] == 8
    assert len(document["matrices"]) == 4
    for found in document["experts"].values():
        assert found["random"] == [4 / 32] * 4
        assert all(0 < value < 1 for value in [*found["own"], *found["others"]])
        assert found["from"] == "task vector"
    assert len(energy_figure(document, {}, "light").table) == 2 * 4


def test_a_shuffled_expert_is_found_again_and_the_path_is_as_before(view, zoo):
    document = view("connection", start="alpha", end="beta", points=3)
    plain = view("connection", start="alpha", end="beta", points=3, shuffle=False)
    units = document["units"]
    assert set(units["found"].values()) == {1.0}, "every planted order is undone"
    assert max(units["moved"].values()) > 0.5
    assert all(units["after"][group] > units["before"][group] for group in units["after"])
    assert units["apart"] < 1e-10
    assert all(value == 0 for value in plain["units"]["moved"].values())
    assert set(plain["units"]["found"].values()) == {1.0}, "units of one base match themselves"
    for task in ("alpha", "beta"):
        first, second = document["tasks"][task], plain["tasks"][task]
        for place in (0, -1):
            assert first["plain"]["loss"][place] == pytest.approx(second["plain"]["loss"][place], rel=1e-4)
        assert first["aligned"]["loss"] == pytest.approx(second["plain"]["loss"], rel=1e-4)
        assert first["plain"]["loss"][1] != pytest.approx(second["plain"]["loss"][1], rel=1e-4)
        assert first["deviation"]
        ours = by_hand(zoo, task, {"alpha": 0.5, "beta": 0.5})[2]
        assert first["aligned"]["loss"][1] == pytest.approx(ours, rel=1e-4)
    for found in units["zips"].values():
        assert sum(found.values()) == pytest.approx(1)
    assert plain["units"]["zips"]["units_0"]["same"] > units["zips"]["units_0"]["same"]
    assert len(connection_figure(document, ("Alpha", "Beta"), "light").figure.data) == 3
    assert len(units_table(document)) == len(units["found"])
    assert len(zip_figure(document, "dark").figure.data) == 4
    assert set(barriers(document)) == {"plain", "aligned", "repaired"}


def test_repair_gives_hidden_units_the_statistics_between_the_ends(view):
    document = view("connection", start="alpha", end="pretrained", points=3, method="activation_matching")
    found = document["tasks"]["alpha"]
    assert all(0 < ratio < 2 for ratio in found["deviation"].values())
    assert found["repaired"]["loss"][0] == found["aligned"]["loss"][0]
    assert found["repaired"]["loss"][1] != found["aligned"]["loss"][1]


def test_the_command_says_what_the_view_measures(command, zoo):
    code, out, err = command("zoo", "connect", zoo, "alpha", "beta", "--shuffle", "--points", 3, "--images", 8, "-q")
    assert (code, err) == (0, "")
    assert "Loss barrier: as they are " in out
    assert "repaired" in out
    assert "units_0: 100 % of units put right" in out
    assert "ZipIt" in out
    code, _, err = command("zoo", "connect", zoo, "alpha", "gamma")
    assert code == 1
    assert "no model 'gamma'" in err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": "alpha", "end": "alpha"}, "choose two models"),
        ({"start": "gamma"}, "no model 'gamma'"),
        ({"method": "zip"}, "no way to align 'zip'"),
        ({"params": {"sweeps": 0}}, "sweeps"),
    ],
)
def test_connections_that_cannot_be_are_refused(view, settings, message):
    with pytest.raises(RecipeError, match=message):
        view("connection", **settings)
