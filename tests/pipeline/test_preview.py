"""Previews of small made zoos: what a run of the same sample measures, in memory, and nothing that stays."""

import time

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from engine.analysis.accuracy import mean_interval
from engine.analysis.paired import paired_difference
from engine.catalog import MERGE_METHODS
from engine.errors import Cancelled, EngineError
from engine.figures.preview import preview_points, preview_tasks, shown_average
from engine.pipeline.executor import needed_steps, run_inline
from engine.pipeline.local import run_recipe
from engine.pipeline.planners import plan_request
from engine.pipeline.preview import models, resident
from engine.pipeline.preview.measure import _remember
from engine.pipeline.preview.request import (
    KIND,
    PreviewRequest,
    foreseen_seconds,
    looked_at,
    merges_alike,
    preview_request,
    read_preview,
)
from engine.pipeline.rates import known_rates
from engine.pipeline.tools import Silent, StepTools
from engine.recipe import parse_recipe
from engine.store import Store
from engine.store.passing import forget_passing
from tests.tiny_text_zoo import make_text_zoo
from tests.tiny_zoo import make_zoo

SAMPLE = 9
SURGERY = {"method": "surgery", "params": {"rank": 4, "steps": 20, "batch_size": 8}}
MERGES = [
    {"merge": {"method": "task_arithmetic", "params": {"scaling": 0.8}}},
    {"merge": {"method": "ties"}, "transforms": [{"method": "lwptv"}]},
    {"merge": {"method": "tsv_m"}},
    {"merge": {"method": "emr"}},
    {"merge": {"method": "twin"}},
    {"merge": {"method": "task_arithmetic"}, "forward": "linearised"},
    {"merge": {"method": "task_arithmetic"}, "experts": [{"name": "alpha", "weight": 1.0}, {"name": "gamma"}]},
]


@pytest.fixture(autouse=True)
def keeper(monkeypatch):
    """A worker's memory of its own for every test."""
    made = resident.Keeper()
    monkeypatch.setattr("engine.pipeline.preview.measure.KEEPER", made)
    yield made
    made.give_back()


@pytest.fixture
def own_store(tmp_path):
    return Store(tmp_path / "own")


def recipe(zoo, **changes):
    return parse_recipe({"zoo": str(zoo), **changes})


def preview(store, asked, monitor=None):
    """Carry a preview out and return its document and arrays."""
    folder = run_inline(plan_request(KIND, asked.model_dump(mode="json"), store), store, monitor)
    arrays = {name: tensor.numpy() for name, tensor in load_file(folder / "preview.safetensors").items()}
    return read_preview(folder), arrays


def scaled(zoo, scaling, **changes):
    return recipe(zoo, merge={"method": "task_arithmetic", "params": {"scaling": scaling}}, **changes)


@pytest.mark.parametrize("changes", MERGES, ids=lambda c: "-".join([c["merge"]["method"], *sorted(c)[:1]]))
def test_a_preview_is_a_run_of_its_sample(zoo, store, changes):
    asked = PreviewRequest(recipe=recipe(zoo, **changes), images=SAMPLE)
    document, arrays = preview(store, asked)
    assert document["map"]["anchors"] == ["pretrained", "merged"]
    report = run_recipe(recipe(zoo, probe={"samples_per_task": SAMPLE}, **changes), store)
    found = {task["name"]: task["merged"][0] for task in document["tasks"]}
    assert found == pytest.approx(report.accuracy["merged"])
    inside = document["average"]["in"]["merged"]
    assert inside["mean"] == pytest.approx(report.average["merged"].within)
    ends = mean_interval(
        (*task["merged"][:1], task["evaluated"]) for task in document["tasks"] if task["domain"] == "in"
    )
    assert (inside["low"], inside["high"]) == pytest.approx(ends)
    assert {task["evaluated"] for task in document["tasks"]} == {SAMPLE}
    assert len(arrays["merged/points"]) == len(arrays["task"]) == SAMPLE * len(document["tasks"])
    assert np.isfinite(arrays["merged/points"]).all()


def test_the_difference_is_by_image_on_the_images_of_the_preview(zoo, store):
    before, after = scaled(zoo, 0.1), scaled(zoo, 1.5)
    shown = before.model_copy(update={"probe": before.probe.model_copy(update={"split_seed": 7})})
    document, arrays = preview(store, preview_request(after, shown))
    alone, own = preview(store, preview_request(before, None))
    assert document["map"]["anchors"] == ["pretrained", "against"]
    np.testing.assert_array_equal(arrays["against/right"], own["merged/right"])
    np.testing.assert_array_equal(arrays["index"], own["index"])
    inside = [n for n, task in enumerate(document["tasks"]) if task["domain"] == "in"]
    sides = [
        {str(task): arrays[f"{side}/right"][arrays["task"] == task].astype(bool)[None] for task in inside}
        for side in ("merged", "against")
    ]
    expected, found = paired_difference(*sides), document["average"]["in"]["difference"]
    assert (found["mean"], found["low"], found["high"]) == pytest.approx((expected.mean, expected.low, expected.high))
    assert found["outcome"] == expected.outcome()
    assert document["average"]["in"]["against"]["mean"] == pytest.approx(alone["average"]["in"]["merged"]["mean"])


def test_merges_that_are_made_from_fewer_images_than_a_run_s_say_so(zoo, store):
    few = {"probe": {"samples_per_task": 20}}
    looking = recipe(zoo, merge={"method": "regmean"}, **few)
    asked = PreviewRequest(recipe=looking, against=recipe(zoo, merge={"method": "regmean"}), images=SAMPLE)
    here = f"Made here from at most {SAMPLE} images a task; a run makes "
    document, _ = preview(store, asked)
    assert document["looked_at"] == f"{here}this merge from 20 images a task, that of the run shown from all images."
    asked = PreviewRequest(recipe=looking, against=scaled(zoo, 0.3, **few), images=SAMPLE)
    assert looked_at(asked) == f"{here}this merge from 20 images a task."
    assert looked_at(asked.model_copy(update={"images": 20})) == ""
    assert looked_at(PreviewRequest(recipe=scaled(zoo, 0.3), images=SAMPLE)) == ""


def test_the_map_stands_while_a_parameter_moves(zoo, store):
    first, second = (preview(store, preview_request(scaled(zoo, at), scaled(zoo, 0.3)))[1] for at in (0.5, 1.5))
    np.testing.assert_allclose(first["against/points"], second["against/points"], atol=1e-5)
    assert np.abs(first["merged/points"] - second["merged/points"]).max() > 1e-3


def test_nothing_but_the_preview_reaches_the_store(zoo, own_store):
    preview(own_store, preview_request(recipe(zoo, merge={"method": "ties"}), scaled(zoo, 0.3)))
    assert [artefact.step for artefact in own_store.artefacts()] == ["preview"]


def test_the_same_settings_are_found_again_and_calibrators_do_not_count(zoo, store):
    asked = preview_request(scaled(zoo, 0.61, calibrators=[SURGERY], seeds=[0, 1]), scaled(zoo, 0.3))
    preview(store, asked)
    again = preview_request(scaled(zoo, 0.61), scaled(zoo, 0.3, calibrators=[SURGERY]))
    assert not needed_steps(plan_request(KIND, again.model_dump(mode="json"), store), store)
    assert merges_alike(scaled(zoo, 0.61), scaled(zoo, 0.61, calibrators=[SURGERY]))
    assert not merges_alike(scaled(zoo, 0.61), scaled(zoo, 0.3))


def test_models_and_what_methods_cache_are_read_once(zoo, own_store, keeper, monkeypatch):
    read = []
    weights = resident.Zoo.weights
    monkeypatch.setattr(resident.Zoo, "weights", lambda self, name: read.append(name) or weights(self, name))
    for density in (0.2, 0.2, 0.4):
        merge = {"method": "ties", "params": {"density": density}}
        preview(own_store, preview_request(recipe(zoo, merge=merge), None))
        planned = read.count("base")
    assert planned > 1, "plans compare the headers of files"
    kept = keeper._kept[1]
    assert set(kept._weights) == {"base", "alpha", "beta", "gamma"}
    before = len(read)
    kept.weights("alpha")
    assert len(read) == before
    computed = []
    for _ in range(2):
        made = kept.cached("made", lambda: computed.append(1) or {"one": torch.ones(2)})
        made["one"].zero_()
    assert computed == [1]
    assert kept.cached("made", dict)["one"].tolist() == [1, 1]


def test_what_is_cached_is_bounded_and_the_oldest_goes_first(zoo, keeper, store):
    preview(store, preview_request(scaled(zoo, 0.71), None))
    kept = keeper._kept[1]
    kept._spare = 100
    for name in ("a", "b"):
        kept.cached(name, lambda: {"x": torch.zeros(20)})
    assert list(kept._cached) == ["b"]
    kept.cached("huge", lambda: {"x": torch.zeros(1000)})
    assert "huge" not in kept._cached
    assert kept._spare >= 0


def test_a_zoo_without_room_for_it_is_read_anew(zoo, store, monkeypatch, keeper):
    monkeypatch.setattr(resident, "MOST", 0)
    document, _ = preview(store, preview_request(scaled(zoo, 0.72), None))
    assert document["average"]["in"]["merged"]["images"] > 0
    assert not keeper._kept[1]._weights


def test_the_memory_is_given_back_and_files_that_changed_are_read_again(tmp_path, own_store, keeper):
    zoo = make_zoo(tmp_path / "zoo")
    first, _ = preview(own_store, preview_request(scaled(zoo, 1.0), None))
    assert not keeper.empty
    keeper.idle = 0.2
    preview(own_store, preview_request(scaled(zoo, 0.8), None))
    deadline = time.monotonic() + 10
    while not keeper.empty and time.monotonic() < deadline:
        time.sleep(0.05)
    assert keeper.empty
    keeper.idle = 60
    preview(own_store, preview_request(scaled(zoo, 0.9), None))
    kept = keeper._kept[1]
    file = zoo / "experts" / "alpha.safetensors"
    save_file({name: -tensor for name, tensor in load_file(file).items()}, file)
    second, _ = preview(own_store, preview_request(scaled(zoo, 1.0), None))
    assert keeper._kept[1] is not kept
    assert second["tasks"] != first["tasks"]


def test_the_time_is_measured_and_foretold(zoo, own_store):
    asked = preview_request(scaled(zoo, 0.4), None)
    guessed = foreseen_seconds(asked, own_store)
    preview(own_store, asked)
    assert not known_rates(own_store).preview, "the first one reads what the next ones find in memory"
    document, _ = preview(own_store, preview_request(scaled(zoo, 0.5), None))
    (measured,) = known_rates(own_store).preview.values()
    assert 0 < measured <= document["seconds"]
    assert foreseen_seconds(preview_request(scaled(zoo, 0.9), None), own_store) == measured
    assert guessed >= 0


class Stopping(Silent):
    """A monitor that wants no result after some looks."""

    def __init__(self, looks):
        self.looks = looks

    def cancelled(self):
        self.looks -= 1
        return self.looks < 0


@pytest.mark.parametrize("looks", [1, 3, 5])
def test_a_preview_that_nobody_wants_stops_and_leaves_nothing(zoo, own_store, looks):
    with pytest.raises(Cancelled):
        preview(own_store, preview_request(scaled(zoo, 0.4), None), Stopping(looks))
    assert not list(own_store.artefacts())


@pytest.mark.parametrize("graded", [1, 3])
def test_a_task_whose_answers_are_numbers_is_drawn_without_an_accuracy(tmp_path, own_store, graded):
    folder = make_text_zoo(tmp_path / "zoo")
    manifest = yaml.safe_load((folder / "zoo.yaml").read_text())
    manifest["tasks"] = [task for task in manifest["tasks"] if task["name"] != "outside"]
    for task in manifest["tasks"][:graded]:
        task |= {"grades": [0, 1, 2], "measure": "spearman"}
    (folder / "zoo.yaml").write_text(yaml.safe_dump(manifest))
    asked = PreviewRequest(recipe=scaled(folder, 0.8), against=scaled(folder, 0.3), images=SAMPLE)
    document, arrays = preview(own_store, asked)
    tasks, points = preview_tasks(document, "light"), preview_points(document, arrays, "light")
    assert tasks.table["task"].tolist() == [task["title"] for task in document["tasks"][graded:]]
    assert points.table["right"].isna().tolist() == (arrays["task"] < graded).tolist()
    assert [trace.name for trace in points.figure.data].count("answer is a number") == 1
    if graded == 3:
        assert shown_average(document) is None
        assert "answers are numbers" in tasks.alt
    else:
        run = run_recipe(scaled(folder, 0.8, probe={"samples_per_task": SAMPLE}), own_store)
        domain, average = shown_average(document)
        assert (domain, average["merged"]["mean"]) == ("in-domain", pytest.approx(run.average["merged"].within))


def test_one_slow_preview_among_quick_ones_is_not_believed(zoo, own_store):
    tools = StepTools(own_store, Silent())

    def after(seconds):
        _remember("made", seconds, 0.3, tools)
        return known_rates(own_store).preview["made"]

    assert after(9.0) == pytest.approx(0.488), "nor is the first one"
    assert after(0.6) == 0.6
    assert after(9.0) == pytest.approx(0.78), "two more would have to follow until a preview waits for a button"
    assert [after(9.0) for _ in range(14)][-1] == pytest.approx(9.0, rel=0.2), "a machine that stays slow is slow"


def test_a_merge_that_is_refused_says_why_and_one_compared_with_is_left_out(zoo, store):
    only = [{"name": "alpha"}]
    refused = recipe(zoo, merge={"method": "ties"}, experts=[{"name": "nobody"}])
    with pytest.raises(EngineError, match="nobody"):
        preview(store, PreviewRequest(recipe=refused))
    document, arrays = preview(store, PreviewRequest(recipe=scaled(zoo, 0.4, experts=only), against=refused))
    assert "against" not in document["average"]["in"]
    assert "against/points" not in arrays
    assert "nobody" in document["uncompared"]
    learning = next(row for row in MERGE_METHODS.values() if row.learns)
    learned = recipe(zoo, merge={"method": learning.name})
    document, arrays = preview(store, PreviewRequest(recipe=scaled(zoo, 0.4), against=learned))
    assert "against/points" not in arrays
    assert document["uncompared"].startswith(f"{learning.title} learns from images")


def test_other_experts_and_the_same_ones_are_compared_alike(zoo, store):
    few, everyone = scaled(zoo, 0.3, experts=[{"name": "alpha"}, {"name": "beta"}]), scaled(zoo, 0.3)
    for shown in (few, everyone):
        arrays = preview(store, preview_request(scaled(zoo, 0.9), shown))[1]
        alone = preview(store, preview_request(shown, None))[1]
        found, expected = ((part["task"] < 2).nonzero() for part in (arrays, alone))  # alpha's and beta's
        np.testing.assert_array_equal(arrays["index"][found], alone["index"][expected])
        np.testing.assert_array_equal(arrays["against/right"][found], alone["merged/right"][expected])


def test_features_that_are_not_finite_are_an_error(tmp_path, own_store):
    zoo = make_zoo(tmp_path / "zoo")
    file = zoo / "experts" / "beta.safetensors"
    save_file({name: tensor * float("nan") for name, tensor in load_file(file).items()}, file)
    with pytest.raises(EngineError, match="not finite"):
        preview(own_store, preview_request(scaled(zoo, 0.4), None))


def test_texts_are_previewed_too(tmp_path, own_store):
    zoo = make_text_zoo(tmp_path / "texts")
    document, arrays = preview(own_store, preview_request(scaled(zoo, 0.4), scaled(zoo, 0.3)))
    report = run_recipe(scaled(zoo, 0.4, probe={"samples_per_task": 32}), own_store)
    assert {task["name"]: task["merged"][0] for task in document["tasks"]} == pytest.approx(report.accuracy["merged"])
    assert len(arrays["against/points"]) == len(arrays["task"])


def test_previews_are_forgotten_with_what_they_left(zoo, own_store):
    runs, rows = own_store.runs, []
    for scaling in (0.4, 0.5):
        asked = preview_request(scaled(zoo, scaling), None).model_dump(mode="json")
        plan = plan_request(KIND, asked, own_store)
        run_inline(plan, own_store)
        rows.append(runs.submit(KIND, asked, owner="test"))
        runs.finish(rows[-1].id, plan.result)
    kept = runs.submit("run", {}, owner="test")
    runs.finish(kept.id, runs.get(rows[0].id).result)
    assert forget_passing(own_store, (KIND,)) == 0, "they stay for minutes"
    assert forget_passing(own_store, (KIND,), kept=-1) == 2
    assert [run.id for run in runs.list()] == [kept.id]
    assert [artefact.key for artefact in own_store.artefacts()] == [runs.get(kept.id).result], "a run refers to it"
    assert not (own_store.root / "runs" / f"{rows[0].id}.json").exists()


PROPORTIONAL = [
    {"method": "task_arithmetic"},
    {"method": "ties", "params": {"density": 0.3, "merge": "mean"}},
    {"method": "tsv_m"},
]


@pytest.mark.parametrize("merge", PROPORTIONAL, ids=lambda merge: merge["method"])
def test_another_scaling_takes_the_vector_that_was_kept(zoo, store, own_store, keeper, monkeypatch, merge):
    made = []
    whole = models.merge_experts
    monkeypatch.setattr(models, "merge_experts", lambda *given: made.append(1) or whole(*given))

    def at(scaling, **changes):
        params = {**merge.get("params", {}), "scaling": scaling}
        return recipe(zoo, merge={"method": merge["method"], "params": params}, **changes)

    transforms = [{"method": "lwptv", "params": {"eta": 0.3}}]
    found = {scaling: preview(own_store, preview_request(at(scaling), None)) for scaling in (0.0, 0.37, -0.8)}
    assert len(made) == 1
    preview(own_store, preview_request(at(0.37, transforms=transforms), None))
    assert len(made) == 2
    preview(own_store, preview_request(at(0.5, transforms=transforms), None))
    assert len(made) == 2
    monkeypatch.setattr(models.Resident, "scaled", lambda *given: None)
    for scaling, (document, arrays) in found.items():
        keeper.give_back()
        other = Store(own_store.root.parent / f"other{scaling}")
        expected, points = preview(other, preview_request(at(scaling), None))
        assert document["tasks"] == expected["tasks"]
        for name, values in points.items():
            assert np.array_equal(arrays[name], values), (scaling, name)


def test_experts_give_up_their_memory_for_a_merged_vector(zoo, own_store, keeper, monkeypatch):
    preview(own_store, preview_request(scaled(zoo, 0.5), None))
    kept = keeper._kept[1]
    size = resident._size(kept.weights("base"))
    vector = kept._vector
    layers = resident._bytes(vector[1])
    assert layers <= size
    kept._room = 0
    assert (
        kept.scaled("another", 1.0, lambda: {n: 2 * t for n, t in vector[1].items()}).names
        == kept.weights("base").names
    )
    assert set(kept._weights) == {"base", "alpha", "beta", "gamma"}, "the place of the one before is enough"
    kept._room, kept._vector = 0, None
    kept.scaled("a third", 1.0, lambda: dict(vector[1]))
    assert set(kept._weights) == {"base", "alpha", "beta"}
    assert kept._room == size - layers
    for name in ("alpha", "beta"):
        del kept._weights[name]
    kept._room, kept._vector = 0, None
    assert kept.scaled("a fourth", 1.0, lambda: pytest.fail("there is no room")) is None
