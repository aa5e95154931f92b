"""The shipped zoo and example runs are those of the present code, and show what they are there to show."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file, save_file

from engine.errors import RecipeError
from engine.figures.coefficients import learned_coefficients
from engine.manifest import ASSETS
from engine.pipeline.export.beside import SWEEPS, learning, through
from engine.pipeline.export.examples import (
    EXAMPLES,
    FILMS,
    build_examples,
    example_recipe,
    neighbour_table,
    shrink_arrays,
    shrink_documents,
    shrink_tables,
)
from engine.pipeline.local import run_recipe
from engine.pipeline.offered import offered_views
from engine.pipeline.run.plan import plan_run
from engine.pipeline.run.projecting import ProjectionRequest
from engine.pipeline.viewing.shipped import LEARNED, SWEEP, shipped_name
from engine.pipeline.views.film import drawn_states
from engine.report import read_report
from engine.store import Store
from engine.sweeps import read_table
from engine.zoo.check import check_zoo

FOLDER = ASSETS / "examples"
NAMES = [name for name, _, _ in EXAMPLES]
OWN = {  # what the examples' recipes have at the places that their films vary
    "merge.params.scaling": 0.3,
    "merge.params.density": 0.2,
    "transforms.0.params.eta": 0.7,
    "calibrators.0.params.rank": 16,
    "calibrators.1.params.hidden": 128,
    "calibrators.0.params.steps": 1000,
    "calibrators.1.params.steps": 1000,
    "experts": 8,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def reports():
    return {name: read_report(FOLDER / name) for name in NAMES}


def test_the_bundled_zoo_is_in_order():
    findings = check_zoo("mini8", progress=lambda fraction, message="": None)
    lines = [str(finding) for finding in findings]
    scored = [line for line in lines if "classified correctly" in line]
    alike = [line for line in lines if "look nearly like others" in line]
    assert len(scored) == 8 + 6  # tasks of the experts, and the others
    assert len(lines) - len(scored) - len(alike) == 1 + 1 + 8 + 14 + 1


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="examples are built on the CPU; a GPU's runs have other identities"
)
@pytest.mark.parametrize(("name", "parts"), [(name, parts) for name, _, parts in EXAMPLES], ids=NAMES)
def test_an_example_is_the_run_that_its_recipe_asks_for(name, parts, reports, store):
    plan = plan_run(example_recipe(parts), store)
    assert reports[name].identity == plan.result, "run `make examples`"


def test_an_unknown_example_is_refused_before_anything_is_run(store, tmp_path):
    with pytest.raises(RecipeError, match=r"no example 'tis'\. Did you mean 'ties'"):
        build_examples(store, tmp_path / "out", only=["tis"], progress=lambda *said: None)
    assert not (tmp_path / "out").exists()


def test_examples_are_listed_in_order():
    index = json.loads((FOLDER / "index.json").read_text())
    assert [entry["name"] for entry in index["examples"]] == NAMES
    for name in NAMES:
        assert {path.name for path in (FOLDER / name / "projections").iterdir()} == {"pca", "tsne", "umap"}


@pytest.mark.parametrize("name", NAMES)
def test_projections_are_those_that_a_page_asks_for_first(name):
    for method in ("pca", "tsne", "umap"):
        document = json.loads((FOLDER / name / "projections" / method / "projection.json").read_text())
        assert document["params"] == ProjectionRequest(method=method).params()


@pytest.mark.parametrize("name", NAMES)
def test_every_image_shown_has_its_neighbours_in_every_state(name):
    table = pd.read_parquet(FOLDER / name / "neighbours.parquet")
    shown = pd.read_parquet(FOLDER / name / "projections" / "tsne" / "projection.parquet")
    assert set(table.groupby(["state", "task", "index"], observed=True).size()) == {8}
    keys = ["state", "task", "index"]
    assert set(map(tuple, table[keys].to_numpy())) == set(map(tuple, shown[keys].to_numpy()))
    assert (table["neighbour"] != table["index"]).all()
    assert (table.sort_values("rank").groupby(keys, observed=True)["distance"].diff().dropna() >= -1e-6).all()


def test_merging_costs_accuracy_and_calibrators_win_it_back_on_other_images(reports):
    report = reports["task-arithmetic"]
    means = {state: average.within for state, average in report.average.items()}
    assert report.protocol == "held_out"
    assert means["expert"] >= 95
    assert min(report.accuracy["expert"].values()) >= 85
    assert 35 <= means["pretrained"] <= 60
    assert means["merged"] >= means["pretrained"] + 15
    assert means["merged"] <= means["expert"] - 12
    assert report.average["surgery"].recovered >= 50
    assert report.average["prob_surgery"].recovered >= report.average["surgery"].recovered
    assert max(means["surgery"], means["prob_surgery"]) <= means["expert"] - 2
    assert all(value > 0 for value in report.bias["merged"].l1.values())


def test_pruning_layers_wins_back_accuracy_out_of_domain(reports):
    plain, pruned = reports["task-arithmetic"].average, reports["task-arithmetic-lwptv"].average
    lost = plain["pretrained"].out - plain["merged"].out
    assert lost >= 10
    assert pruned["merged"].out - plain["merged"].out >= lost / 3
    assert pruned["merged"].h_score >= plain["merged"].h_score + 3


@pytest.mark.parametrize("name", SWEEPS)
def test_the_sweep_beside_an_example_passes_through_its_run(name, reports):
    table, report = read_table(FOLDER / name / SWEEP), reports[name]
    place, values = SWEEPS[name]
    assert table.places == (place,)
    assert [point.values for point in table.points] == [(value,) for value in values], "run `make examples`"
    (own,) = [point for point in table.points if point.values == (OWN[table.places[0]],)]
    assert (own.run, own.evaluation) == (report.identity, report.average)
    assert table.split == "validation"
    other = own.model_copy(update={"evaluation": {}})
    apart = table.model_copy(update={"points": tuple(other if point == own else point for point in table.points)})
    assert through(apart, report) == table


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="examples are built on the CPU; a GPU's runs have other identities"
)
@pytest.mark.parametrize("name", SWEEPS)
def test_coefficients_beside_an_example_are_those_of_its_experts(name, reports, store):
    for learned, recipe in learning(reports[name].recipe).items():
        report = read_report(FOLDER / name / LEARNED / learned)
        assert report.identity == plan_run(recipe, store).result, "run `make examples`"
        found = learned_coefficients(report)
        assert found.experts == reports[name].experts
        assert found.values.shape == (len(found.experts), len(found.layers))
        assert (found.pruned_by == 0.7) == learned.startswith("lwptv")


@pytest.mark.parametrize("name", FILMS)
def test_films_of_an_example_are_there_and_pass_through_its_run(name, reports):
    report = reports[name]
    for place, values in FILMS[name]:
        document = json.loads((FOLDER / name / "films" / place / "film.json").read_text())
        assert document["values"] == list(values), "run `make examples`"
        assert document["failed"] == {}
        size = sum(path.stat().st_size for path in (FOLDER / name / "films" / place).iterdir())
        assert size <= 300_000
        arrays = load_file(FOLDER / name / "films" / place / "film.safetensors")
        drawn = {array.partition("/")[0] for array in arrays if "/" in array}
        assert drawn == set(drawn_states(document, report.recipe)), "others are not shipped"
        own = values.index(OWN[place])
        for task, percent in report.accuracy["merged"].items():
            assert document["accuracy"]["merged"][task][own] == pytest.approx(percent, abs=1e-3), (place, task)


@pytest.mark.parametrize("name", NAMES)
def test_shipped_views_are_those_that_pages_ask_for(name, reports):
    asked = {shipped_name(view, request) for view, request in offered_views(reports[name])}
    there = {path.name for path in (FOLDER / name / "views").glob("*")}
    assert there == asked, "run `make examples`"
    assert sum(path.stat().st_size for path in (FOLDER / name / "views").glob("*/*")) <= 2_000_000


def test_documents_are_rounded_where_they_hold_fractions_and_lose_nothing_else(tmp_path):
    path = tmp_path / "film.json"
    document = {
        "values": [0.1234567891, -12.345678, 1763000000.123, 3, 10**12],
        "name": "signs in fog · n = 5",
        "no": None,
    }
    path.write_text(json.dumps(document, indent=1))
    shrink_documents(tmp_path, exact=True)
    assert json.loads(path.read_text(encoding="utf-8")) == document
    shrink_documents(tmp_path)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found == {**document, "values": [0.123457, -12.3457, 1763000000.123, 3, 10**12]}
    assert "\n " not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("few", [True, False])
def test_tables_keep_four_digits_of_every_fraction_whichever_way_is_shorter(tmp_path, few):
    rng = np.random.default_rng(0)
    values = rng.choice([0.25, 1.5], 3000) if few else rng.normal(0, 100, 3000)
    table = pd.DataFrame({"task": "digits", "index": range(3000), "value": values})
    table.to_parquet(tmp_path / "t.parquet")
    shrink_tables(tmp_path)
    found = pd.read_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(found.drop(columns="value"), table.drop(columns="value"))
    assert found["value"].to_numpy() == pytest.approx(values, rel=1e-3, abs=6e-4)


@pytest.mark.slow
def test_an_example_comes_out_again(reports, store, tmp_path):
    shown = reports["ties-lwptv"]
    parts = dict(next(parts for name, _, parts in EXAMPLES if name == "ties-lwptv"))
    recipe = example_recipe(parts).model_copy(update={"seeds": (0,)})
    report = run_recipe(recipe, store, view={"method": "pca"}, out=tmp_path / "run")
    for task, percent in shown.accuracy["merged"].items():
        assert report.accuracy["merged"][task] == pytest.approx(percent, abs=0.5), task
    for task, value in shown.bias["merged"].l1.items():
        assert report.bias["merged"].l1[task] == pytest.approx(value, rel=0.01), task
    for name in ("surgery", "prob_surgery"):
        assert report.average[name].within == pytest.approx(shown.average[name].within, abs=1.0)
    near, kept = (
        table[table["state"] == "merged"].set_index(["task", "index", "rank"])["distance"].sort_index()
        for table in (neighbour_table(tmp_path / "run"), pd.read_parquet(FOLDER / "ties-lwptv" / "neighbours.parquet"))
    )
    assert near.to_numpy() == pytest.approx(kept.to_numpy(), abs=1e-4)


def test_arrays_are_halved_where_a_figure_shows_no_less(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "spectrum": np.sort(rng.random(50))[::-1].astype("float32") * 3,
        "with rounding": np.array([2.0, 1e-9], dtype="float64"),
        "wide": np.array([1e6, 1.0, 1e-3], dtype="float64"),
        "small and large": np.array([1.0, 1e-6 + 3e-7], dtype="float32") * 1e-3,
        "none": np.zeros((0, 4), dtype="float32"),
        "count": np.arange(3),
    }
    save_file(arrays, tmp_path / "a.safetensors", {"of": "a test"})
    shrink_arrays(tmp_path)
    found = load_file(tmp_path / "a.safetensors")
    assert {name: str(array.dtype) for name, array in found.items()} == {
        "spectrum": "float16",
        "with rounding": "float16",
        "wide": "float32",
        "small and large": "float32",
        "none": "float16",
        "count": "int64",
    }
    for name, array in arrays.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-6 * np.abs(array).max(initial=0.0))
