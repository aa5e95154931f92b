"""The table of methods: every row of the catalog, results of finished runs, runs that fill the gaps."""

import pytest

from engine.catalog import ALIGNMENTS, FINE_TUNING, MERGE_METHODS, TRANSFORMS, fits
from engine.catalog.survey import TABLE
from engine.figures.methods import (
    WITH_APP,
    Result,
    best_results,
    default_params,
    method_table,
    methods,
    shipped_results,
)
from engine.figures.survey import stands_for, survey_table
from engine.manifest import locate_zoo, read_manifest
from engine.recipe import parse_recipe


def result(run, method=("task_arithmetic",), within=50.0, **params):
    known = {name: {**default_params(name), **params.get(name, {})} for name in method}
    return Result(run, run, method, known, 2, within, 40.0, 44.4, 0.5)


def table_of(app):
    return app.dataframe[0].value.set_index("method")


@pytest.fixture
def open_methods(workspace, open_app):
    def start():
        app = open_app("methods")
        app.selectbox(key="methods.zoo").set_value(str(workspace.zoo)).run()
        assert not app.exception
        return app

    return start


def test_every_method_of_the_catalog_is_a_row():
    assert {row.name for row in methods().values()} == {*MERGE_METHODS, *TRANSFORMS}
    table = method_table({})
    assert table["in"].isna().all()
    assert table.loc[table["method"] == "emr", "yields"].item() == "weights by task"
    assert "unlabelled images" in table.loc[table["method"] == "adamerging", "needs"].item()
    assert table.loc[table["method"] == "lwptv+task_arithmetic", "category"].item().startswith("Transform")


def test_default_parameters_come_first_then_the_newest():
    changed, default = result("a", task_arithmetic={"scaling": 0.9}), result("b")
    assert not changed.default
    assert best_results([changed, default, result("c")])[("task_arithmetic",)].run == "b"
    assert best_results([changed])[("task_arithmetic",)].run == "a"
    row = method_table(best_results([changed])).set_index("method").loc["task_arithmetic"]
    assert (row["in"], row["parameters"], row["run"]) == (50.0, "changed", "a")


def test_results_that_come_with_the_app_fill_what_no_run_measured(open_app):
    shipped = shipped_results("mini8", tuple(expert.name for expert in read_manifest(locate_zoo("mini8")).experts))
    measured = {name for result in shipped for name in result.method}
    elsewhere = {"slerp", "lora_factors"}  # of two experts, and of experts with adapters
    assert measured >= {*MERGE_METHODS, *TRANSFORMS} - elsewhere
    assert shipped_results("mini8", ("digits",)) == []
    assert shipped_results("/some/zoo", ()) == []
    mine = result("mine", ("wudi",), 12.0, wudi={"steps": 7})
    assert best_results([mine, *shipped])[("wudi",)].run == "mine"
    app = open_app("methods")
    assert not app.exception
    table = table_of(app)
    assert table.loc["wudi", "run"] == WITH_APP
    assert set(table.index[table["in"].isna()]) <= elsewhere
    assert any("n = 4,000 evaluation images in domain" in caption.value for caption in app.caption)
    app.segmented_control(key="methods.view").set_value("survey").run()
    assert not app.exception


def test_a_pair_of_experts_fits_slerp_and_three_do_not():
    assert fits(MERGE_METHODS["slerp"], 2)
    assert not fits(MERGE_METHODS["slerp"], 3)
    assert not fits(TRANSFORMS["lwptv"], 1)


def test_finished_runs_fill_the_table_and_other_zoos_do_not(workspace, open_methods):
    workspace.example()
    row = workspace.finished("Mine", merge={"method": "task_arithmetic", "params": {"scaling": 0.7}})
    table = table_of(open_methods())
    assert table.loc["task_arithmetic", "run"] == "made", "the example has the default parameters"
    assert table.loc["task_arithmetic", "in"] == 56.0
    assert table["run"].isin(["", "made", row.id]).all()
    assert table.loc["ties", "run"] == ""


def test_the_missing_data_free_methods_are_submitted(workspace, open_methods):
    workspace.example()
    app = open_methods()
    app.button(key="methods.missing").click().run()
    assert not app.exception
    recipes = [parse_recipe(row.request["recipe"]) for row in workspace.store.runs.list(states=("queued",), limit=200)]
    asked = {(*(call.method for call in recipe.transforms), recipe.merge.method) for recipe in recipes}
    assert {("ties",), ("emr",), ("lwptv", "task_arithmetic")} <= asked
    assert ("task_arithmetic",) not in asked
    assert not any(MERGE_METHODS[recipe.merge.method].needs for recipe in recipes)
    assert all(recipe.zoo == str(workspace.zoo) and not recipe.calibrators for recipe in recipes)
    app.button(key="methods.cancel").click().run()
    assert not workspace.store.runs.list(states=("queued",))
    assert not app.exception


def test_the_form_says_what_a_method_costs_and_needs(workspace, open_app):
    workspace.example()
    app = open_app()
    said = " ".join(item.value for item in app.caption).replace("\\", "")
    assert "Cost: reads the weights once or twice." in said
    assert "At inference it needs nothing: one model." in said
    options = app.selectbox(key="form.w.merge").options
    families = [option.split(" · ")[0] for option in options]
    assert sorted(set(families), key=families.index) == [
        "Basic",
        "Weighted",
        "Sparse subspace",
        "Low-rank subspace",
        "Optimisation",
        "Routing",
    ]
    assert families == sorted(families, key=sorted(set(families), key=families.index).index), "families stay together"


def test_the_surveys_rows_are_all_there_with_what_was_measured(workspace, open_methods):
    workspace.example()
    workspace.finished("Mine", merge={"method": "ties"})
    app = open_methods()
    app.segmented_control(key="methods.view").set_value("survey").run()
    assert not app.exception
    table = app.dataframe[0].value.set_index("method")
    assert list(table.index) == [row.entry.method for row in TABLE]
    assert table.loc["Task Arithmetic", "in"] == 56.0
    assert table.loc["Surgery", "in"] == 76.0
    assert table.loc["Surgery", "measured"] == "Surgery behind Task Arithmetic"
    assert table.loc["Individual Models", "in"] == 96.0
    assert table.loc["Ties-Merging", "measured"] == "TIES"
    assert table.loc["WUDI-Merging", "run"] == ""


def test_what_acts_before_merging_is_a_table_of_its_own(workspace, open_methods):
    workspace.example()
    app = open_methods()
    app.segmented_control(key="methods.view").set_value("before").run()
    assert not app.exception
    table = app.dataframe[0].value
    titles = [row.title for row in (*FINE_TUNING.values(), *ALIGNMENTS.values())]
    assert [title for title in table["title"] if title != "Distillation"] == titles
    assert table.set_index("title").loc["SAFT", "cost"] == FINE_TUNING["saft"].cost
    assert table["summary"].str.len().min() > 20
    assert table.set_index("title").loc["Linearised", "makes"] == "an expert evaluated linearised"
    distilled = table.set_index("title").loc["Distillation"]
    assert distilled["family"] == "Architecture transformation"
    assert distilled["needs"] == "labelled training images, a teacher with the same classes"
    assert table.set_index("title").loc["OSRM", "needs"] == "labelled training images, images of other tasks"


def test_changed_parameters_and_the_second_choice_are_said():
    changed = result("a", ("multislerp",), 60.0, multislerp={"on": "weights"})
    table = survey_table({("multislerp",): changed}, [changed]).set_index("method")
    assert table.loc["SLERP", "measured"] == "MultiSLERP, parameters changed"
    assert table["in"].notna().sum() == 1
    assert all(stands_for(row) for row in TABLE if not row.state)
