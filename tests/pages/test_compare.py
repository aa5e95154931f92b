"""The page on several runs."""

import numpy as np
import pytest

from tests.made_run import made_report


def texts(app):
    return "\n".join(
        item.value for kind in ("markdown", "caption", "title", "subheader", "warning") for item in getattr(app, kind)
    )


def labels(app):
    return [item.label for item in app.get("download_button")]


@pytest.fixture
def report_run(workspace):
    """Adds a finished run with a report of its own."""

    def add(name, **changes):
        report = made_report(**changes)
        row = workspace.submitted(name, workspace.recipe())
        folder = workspace.store.root / "made" / row.id
        folder.mkdir(parents=True)
        (folder / "report.json").write_text(report.model_dump_json(by_alias=True))
        workspace.store.runs.finish(row.id, str(folder))
        return row.id

    return add


def test_without_runs_it_says_what_it_would_show(open_app):
    app = open_app("compare")
    assert not app.exception
    assert "Choose two to six finished runs" in texts(app)
    assert labels(app) == []


def test_one_run_is_not_a_comparison_but_can_be_taken_along(workspace, open_app):
    run = workspace.finished("Only one")
    app = open_app("compare")
    assert not app.exception
    assert app.multiselect(key="compare.runs").value == [run.id]
    assert labels(app) == ["Report of A, HTML"]


def test_the_examples_are_compared_first(workspace, open_app):
    workspace.finished("Newer")
    workspace.example("one", "First example")
    workspace.example("two", "Second example")
    app = open_app("compare")
    assert app.multiselect(key="compare.runs").value == ["one", "two"]
    assert "Nothing: the recipes ask for the same" in texts(app)
    assert not app.warning
    assert not app.exception


def test_a_run_of_ones_own_is_compared_with_an_example_of_its_zoo(workspace, open_app):
    workspace.example("one", "First example")
    workspace.example("two", "Second example")
    mine = [workspace.finished(name).id for name in ("Mine", "Next")]
    app = open_app(run=mine[0])
    app.switch_page("pages/compare.py").run()
    assert app.multiselect(key="compare.runs").value == [mine[0], "one"]
    assert "**A** Mine" in texts(app)

    def shown_then_compared(run):
        app.switch_page("pages/lab.py")
        app.query_params.pop("runs")
        app.query_params["run"] = run
        app.run()
        return app.switch_page("pages/compare.py").run().multiselect(key="compare.runs").value

    assert shown_then_compared(mine[1]) == [mine[1], "one"], "nobody chose the runs before"
    app.multiselect(key="compare.runs").set_value([mine[0], "two"]).run()
    assert shown_then_compared("two") == [mine[0], "two"], "what somebody chose stays"
    assert not app.exception


def test_the_example_that_is_shown_is_the_first_one(workspace, open_app):
    workspace.example("one", "First example")
    workspace.example("two", "Second example")
    app = open_app(run="two").switch_page("pages/compare.py").run()
    assert app.multiselect(key="compare.runs").value == ["two", "one"]


def test_the_numbers_behind_the_front_can_be_read(workspace, open_app):
    ids = [workspace.finished(name).id for name in ("One", "Two")]
    app = open_app("compare", runs=",".join(ids))
    before = len(app.dataframe)
    app.session_state["compare.pareto.numbers"] = True
    app.run()
    assert not app.exception
    assert len(app.dataframe) == before + 1


def test_a_link_opens_the_same_comparison(workspace, open_app):
    ids = [workspace.finished(name).id for name in ("One", "Two", "Three")]
    app = open_app("compare", runs=f"{ids[2]},{ids[0]}")
    assert app.multiselect(key="compare.runs").value == [ids[2], ids[0]]
    assert "**A** Three" in texts(app)
    app.multiselect(key="compare.runs").set_value([ids[1], ids[2]]).run()
    assert "**A** Two" in texts(app)
    assert app.query_params["runs"] in (f"{ids[1]},{ids[2]}", [f"{ids[1]},{ids[2]}"])
    app.run()
    assert app.multiselect(key="compare.runs").value == [ids[1], ids[2]]


def test_runs_that_are_gone_are_said_to_be(workspace, open_app):
    ids = [workspace.finished(name).id for name in ("One", "Two")]
    app = open_app("compare", runs=f"{ids[0]},nothere,{ids[1]}")
    assert app.toast
    assert app.multiselect(key="compare.runs").value == ids
    assert not app.exception


def test_states_have_their_tables(workspace, open_app):
    for scaling in (0.3, 0.5):
        workspace.finished("Run", merge={"method": "task_arithmetic", "params": {"scaling": scaling}})
    app = open_app("compare")
    assert "Scaling coefficient λ" in list(app.dataframe[0].value["setting"])
    app.selectbox(key="compare.state").set_value("corrected").run()
    assert app.dataframe[1].value["in"].tolist() == [76, 76]
    assert app.dataframe[2].value["name"].tolist() == ["B − A"]
    assert "over 2 tasks that all sides have" in texts(app)
    assert app.dataframe[2].value["says"].tolist() == ["undecided"], "of few images the same answers prove nothing"
    assert app.dataframe[3].value["B − A"].tolist() == [0, 0]
    app.get("button_group")[0].set_value("parameters").run()
    assert not app.exception
    assert "Comparison, LaTeX" in labels(app)


def test_runs_on_different_images_are_warned_of(report_run, open_app):
    report_run("<b>Mine</b> ![x](y)")
    report_run("Other", protocol="paper", split_seed=4)
    app = open_app("compare")
    assert "not measured alike" in app.warning[0].value
    assert "Different split seeds" in app.warning[0].value
    assert "<b>" not in texts(app)
    assert "different images have fronts of their own" in texts(app)


def test_without_foreign_tasks_and_calibrators(report_run, open_app):
    tasks = {"digits": made_report().tasks["digits"]}
    accuracy = {name: {"digits": 50.0} for name in ("pretrained", "merged", "expert")}
    average = {name: {"in": 50.0} for name in accuracy}
    for name in ("One", "Two"):
        report_run(name, tasks=tasks, accuracy=accuracy, average=average, calibrators={}, bias={}, salience=None)
    app = open_app("compare")
    assert not app.exception
    assert "Out-of-domain accuracy" not in app.get("button_group")[0].options
    assert "out" not in app.dataframe[0].value.columns
    assert not np.isnan(app.dataframe[0].value["in_delta"][1])


def test_runs_of_weights_only(report_run, open_app):
    for name in ("One", "Two"):
        report_run(name, accuracy={}, average={}, bias={}, salience=None, calibrators={}, tasks={}, samples={})
    app = open_app("compare")
    assert not app.exception
    assert "No accuracies" in texts(app)
    assert labels(app) == ["Report of A, HTML", "Report of B, HTML"]
