"""The pages on a run's representations, accuracy and salience."""

import json

import numpy as np
import pytest

from engine.figures import ranked_layers
from engine.pipeline.run.projecting import ProjectionRequest, projection_step
from engine.recipe import MethodCall
from pages.shared.chrome import plain
from tests.made_run import EVALUATED, made_report, made_samples, write_projection, write_run
from tests.pages.views import finish, made_zoo, only, open_page, texts

PAGES = ("representations", "accuracy", "calibrate", "salience")


@pytest.mark.parametrize("page", PAGES)
def test_a_finished_run_is_shown(store, key, page):
    finish(store, key)
    app = open_page(page)
    assert not app.exception
    assert not app.error
    assert app.title[0].value


@pytest.mark.parametrize("page", PAGES)
def test_without_any_run_the_page_says_what_it_would_show(store, key, page):
    app = open_page(page)
    assert not app.exception
    assert "No run yet" in texts(app)


@pytest.mark.parametrize("page", PAGES)
def test_an_unknown_run_in_the_address_falls_back_to_one_that_is_there(store, key, page):
    run = finish(store, key)
    app = open_page(page, run="0000nothere")
    assert not app.exception
    assert app.toast
    assert app.query_params["run"] in (run, [run])


@pytest.mark.parametrize("page", PAGES)
def test_a_run_of_weights_only_leaves_no_page_without_an_answer(store, key, page):
    bare = made_report(accuracy={}, average={}, bias={}, salience=None, calibrators={}, tasks={}, samples={})
    with store.create(key, step="bundle") as folder:
        (folder / "report.json").write_text(bare.model_dump_json(by_alias=True))
    row = store.runs.submit("run", {}, name="Bare", owner="process:x:1:1")
    store.runs.finish(row.id, key)
    app = open_page(page)
    assert not app.exception
    assert not app.error
    assert "**No " in texts(app)


@pytest.mark.parametrize("page", PAGES)
def test_one_expert_without_calibrators_or_foreign_tasks(store, key, page):
    report = made_report(
        calibrators={},
        salience=None,
        experts=("digits",),
        tasks={"digits": made_report().tasks["digits"]},
        accuracy={name: {"digits": 50.0} for name in ("pretrained", "merged", "expert")},
    )
    finish(store, key, report)
    app = open_page(page)
    assert not app.exception
    assert not app.error


class TestRepresentations:
    def test_the_caption_says_what_the_projection_is(self, store, key):
        finish(store, key)
        said = texts(open_page("representations"))
        for part in (
            "perplexity 30",
            "seed 0",
            f"{2 * EVALUATED} of {2 * EVALUATED}",
            "not metric",
            "0\\.93",
            "0\\.41",
        ):
            assert part in said, part

    @pytest.mark.parametrize("colour", ["class", "correct", "prediction", "shift", "margin", "sigma"])
    def test_every_colour_can_be_chosen(self, store, key, colour):
        finish(store, key)
        app = open_page("representations")
        app.session_state["features.colour"] = colour
        app.query_params["task"] = "signs"
        app.run()
        assert not app.exception
        assert not app.error
        assert f"{EVALUATED} of them shown" in texts(app)

    def test_correctness_is_shown_first(self, store, key):
        finish(store, key)
        assert open_page("representations").button_group(key="features.colour").value == "correct"

    def test_a_bar_of_distances_can_be_clicked(self, store, key):
        finish(store, key)
        app = open_page("representations")
        bars = next(chart.proto for chart in app.get("plotly_chart") if "representations.bias" in chart.proto.id)
        assert list(bars.selection_mode) == [0]
        assert "Click a bar or a cell to see why" in texts(app).replace("\\", "")

    def test_the_drift_is_said_first(self, store, key):
        finish(store, key)
        said = next(item.value for item in open_page("representations").markdown if "merged features are" in item.value)
        assert "merged features are **0.65** away" in said
        assert "(0.70), least for" in said
        assert "**0.35** after Surgery" in said

    def test_a_missing_projection_offers_to_compute_it_and_keeps_the_old_one(self, store, key):
        finish(store, key)
        app = open_page("representations")
        app.session_state["features.method"] = "umap"
        app.run()
        assert "earlier projection is shown" in texts(app)
        assert "t\\-SNE, perplexity 30" in texts(app)
        only(app.button, "Compute UMAP").click().run()
        row = store.runs.list(kinds=("projection",))[0]
        assert row.request == {**ProjectionRequest(method="umap").model_dump(mode="json"), "bundle": key}
        assert not app.exception
        assert only(app.button, "Cancel")

    def test_a_failed_projection_says_why(self, store, key):
        finish(store, key, projected=False)
        app = open_page("representations")
        assert "Not projected yet" in texts(app)
        only(app.button, "Compute t-SNE").click().run()
        row = store.runs.list(kinds=("projection",))[0]
        store.runs.fail(row.id, "Perplexity must be below 10.", "RecipeError")
        app.run()
        assert "Perplexity must be below 10" in app.error[0].value
        assert not app.exception

    def test_a_damaged_projection_counts_as_absent_and_is_offered_again(self, store, key):
        finish(store, key)
        folder = store.find(projection_step(ProjectionRequest(), key).key)
        path = folder / "projection.json"
        path.write_bytes(b"{" + b" " * (path.stat().st_size - 1))
        app = open_page("representations")
        assert not app.exception
        assert "Not projected yet" in texts(app)
        assert only(app.button, "Compute t-SNE")
        assert store.find(folder.name) is None

    def test_without_images_it_still_works(self, store, key):
        finish(store, key)
        assert "not at hand" in texts(open_page("representations"))

    def test_an_example_brings_its_projection_and_asks_for_others_by_its_recipe(self, store, tmp_path, monkeypatch):
        report = made_report()
        recipe = report.recipe.model_copy(update={"zoo": str(made_zoo(tmp_path / "zoo"))})
        report = report.model_copy(update={"recipe": recipe})
        write_run(tmp_path / "examples" / "first", report)
        (tmp_path / "examples" / "index.json").write_text(json.dumps({"examples": [{"name": "first"}]}))
        monkeypatch.setattr("pages.shared.state.EXAMPLES", tmp_path / "examples")
        app = open_page("representations")
        assert "t\\-SNE, perplexity 30" in texts(app)
        app.session_state["features.method"] = "pca"
        app.run()
        only(app.button, "Compute PCA").click().run()
        row = store.runs.list(kinds=("run",))[0]
        assert row.request["recipe"] == report.recipe.model_dump(mode="json")
        assert row.request["projection"]["method"] == "pca"
        with store.create(projection_step(ProjectionRequest(method="pca"), "cd" * 32).key, step="projection") as folder:
            write_projection(folder / "x", "pca", made_samples(report), report)
            for file in (folder / "x").iterdir():
                file.rename(folder / file.name)
            (folder / "x").rmdir()
        store.runs.claim_next("process:x:1:1")
        assert store.runs.finish(row.id, "cd" * 32)
        app.run()
        assert "earlier projection" not in texts(app)
        assert "PCA, seed 0" in texts(app)

    def test_the_distance_can_be_changed(self, store, key):
        finish(store, key)
        app = open_page("representations")
        app.session_state["representations.measure"] = "cka"
        app.run()
        assert not app.exception
        assert "higher is closer" in texts(app)


class TestAccuracy:
    def test_the_averages_and_their_differences(self, store, key):
        finish(store, key)
        table = open_page("accuracy").dataframe[0].value.set_index("State")
        assert table.loc["Merged", "In-domain (%)"] == 56
        assert table.loc["Surgery", "vs merged"] == 20
        assert np.isnan(table.loc["Surgery", "Out-of-domain (%)"])

    def test_differences_have_intervals_paired_by_image(self, store, key):
        finish(store, key)
        app = open_page("accuracy")
        table = next(frame.value for frame in app.dataframe if "says" in frame.value.columns).set_index("name")
        row = table.loc["Surgery"]
        assert row["low"] < row["difference"] < row["high"]
        assert (row["says"], table.loc["Pretrained", "says"]) == ("higher", "lower")
        assert "paired by image, over one training seed" in texts(app)

    def test_a_hyphen_in_a_title_is_no_minus(self, store, key):
        report = made_report()
        tasks = {name: task.model_copy(update={"title": f"{name}-2"}) for name, task in report.tasks.items()}
        finish(store, key, report.model_copy(update={"tasks": tasks}))
        said = next(text.value for text in open_page("accuracy").markdown if "Merging costs" in text.value)
        assert r"\-2 most: −" in said

    def test_a_merge_that_costs_nothing_is_not_said_to_cost(self, store, key):
        report = made_report()
        more = {task: value + 1 for task, value in report.accuracy["expert"].items()}
        finish(store, key, report.model_copy(update={"accuracy": {**report.accuracy, "merged": more}}))
        said = next(text.value for text in open_page("accuracy").markdown if "Merging costs" in text.value)
        assert said.startswith("Merging costs no task anything; Digits gains least: +1.0 points.")
        assert "Surgery gives nothing back, at best: −" in said

    def test_another_task_has_other_classes(self, store, key):
        finish(store, key)
        app = open_page("accuracy")
        app.selectbox(key="accuracy.task").set_value("scenes").run()
        assert not any("hill" in frame.value.columns for frame in app.dataframe)  # closed tables are not sent
        app.session_state["accuracy.confusion.merged.numbers"] = True
        app.run()
        assert not app.exception
        assert any("hill" in frame.value.columns for frame in app.dataframe)

    def test_markup_in_names_is_text(self, store, key):
        finish(store, key)
        app = open_page("accuracy")
        app.selectbox(key="accuracy.task").set_value("signs").run()
        assert "<b>left</b>" not in texts(app)


@pytest.mark.parametrize(
    ("page", "unit", "seeds"),
    [
        ("accuracy", "Percent of true class;", "training seed 3;"),
        ("accuracy", "Percentage points;", "training seeds 3, 4;"),
        ("representations", "Euclidean distance", "training seed 3;"),
        ("representations", "L1, feature units", "training seeds 3, 4;"),
        ("calibrate", "σ averaged", "training seed 3;"),
        ("diagnose", "Percent of a class's", "training seed 3;"),
    ],
)
def test_what_is_of_the_first_training_seed_alone_says_so(store, key, page, unit, seeds):
    finish(store, key, made_report(seeds=(3, 4)))
    said = [item.value.replace("\\", "") for item in open_page(page).caption]
    captions = [text for text in said if unit in text and "training seed" in text]
    assert captions
    assert all(seeds in text for text in captions)


class TestCalibrate:
    def test_sigma_of_all_tasks_is_that_of_the_tasks_that_are_listed(self, store, key):
        report = made_report()
        shifted = report.tasks["scenes"].model_copy(update={"domain": "shifted"})
        accuracy = {**report.accuracy, "surgery": dict.fromkeys(report.tasks, 75.0)}
        finish(store, key, made_report(tasks={**report.tasks, "scenes": shifted}, accuracy=accuracy))
        assert f"ranked within their task, {2 * EVALUATED} images" in texts(open_page("calibrate"))

    def test_thin_lines_are_explained_only_where_there_are_some(self, store, key):
        finish(store, key)
        app = open_page("calibrate")
        assert "Thick" not in texts(app)  # images that were fitted to have no labels in the made run
        app.session_state["calibrate.quantity"] = "bias"
        app.run()
        assert not app.exception
        assert "Thick" in texts(app)


class TestSalience:
    def test_the_layer_that_matters_most_to_an_expert_is_named(self, store, key):
        finish(store, key)
        app = open_page("salience")
        part, titles = made_report().salience, app.selectbox(key="salience.expert").options
        for title, scores in zip(titles, part.score.values(), strict=True):
            app.selectbox(key="salience.expert").set_value(title).run()
            ranked = ranked_layers(part, list(part.score)[titles.index(title)])
            first = ranked["label"][0]
            assert ranked["salience"][0] == max(scores)
            said = next(item.value for item in app.markdown if "matters most" in item.value)
            assert f"**{plain(title)}**" in said
            assert f"**{plain(first)}** matters most" in said
        assert not app.exception

    def test_layers_can_be_sorted_by_value(self, store, key):
        finish(store, key)
        app = open_page("salience")
        app.session_state["salience.order"] = "By value"
        app.session_state["salience.heatmap.numbers"] = True
        app.run()
        assert not app.exception
        table = app.dataframe[0].value
        assert table.drop(columns=["layer", "component", "parameters"]).mean(axis=1).is_monotonic_decreasing

    def test_the_ratio_moves_the_mask(self, store, key):
        finish(store, key)
        app = open_page("salience")
        assert app.metric[0].value == "2 of 5"
        app.slider[0].set_value(0.0).run()
        assert app.metric[0].value == "5 of 5"
        assert app.metric[1].value == "100.0 %"

    def test_it_says_whether_the_run_pruned(self, store, key):
        part = made_report().salience
        finish(store, key, made_report(salience=part.model_copy(update={"applied": True})))
        app = open_page("salience")
        assert "This is the mask that the run used" in texts(app)
        app.slider[0].set_value(0.2).run()
        assert "preview" in texts(app)

    def test_a_mask_for_each_expert_is_not_said_to_be_the_shared_one(self, store, key):
        report = made_report()
        alone = MethodCall(method="lwptv", params={"eta": 0.7, "shared": False})
        recipe = report.recipe.model_copy(update={"transforms": (alone,)})
        salience = report.salience.model_copy(update={"applied": True})
        finish(store, key, report.model_copy(update={"recipe": recipe, "salience": salience}))
        said = texts(open_page("salience"))
        assert "This is the mask that the run used" not in said
        assert "for each expert by itself" in said


def test_a_late_message_about_the_run_shown_before_does_not_bring_it_back(store, key):
    first, second = finish(store, key), finish(store, key[::-1])
    app = open_page("accuracy", run=first)
    before = app._tree.get_widget_states()  # what the browser says of its widgets
    app.query_params["run"] = second
    app.run()
    assert only(app.selectbox, "Run shown").value == second
    app._run(before)
    switcher = only(app.selectbox, "Run shown")
    assert switcher.value == second
    switcher.set_value(first).run()
    assert only(app.selectbox, "Run shown").value == first
