"""The page of the papers' claims: the list, one claim with its numbers, running it again."""

import pytest

from engine.experiments import FILE, Cell, ExperimentResult, PointResult, experiment_names, judge, read_experiment
from engine.experiments.claims import PRACTICE, effect, verdict_of
from pages.shared.chrome import plain
from pages.shared.results import latest

NAME = "scaling"


def texts(app):
    kinds = ("markdown", "caption", "title", "subheader", "warning", "info", "error")
    return "\n".join(item.value for kind in kinds for item in getattr(app, kind))


def opened(open_app, name):
    """The page with an experiment in its address."""
    app = open_app("experiments")
    app.query_params["experiment"] = name
    return app.run()


@pytest.fixture
def finished(workspace):
    """A finished experiment in the store, better at λ = 0.3 than anywhere."""
    return finish(workspace, "made", 80.0)


def finish(workspace, zoo, best, quick=False):
    """Put a finished experiment on a zoo into the store; ``best`` is the accuracy at λ = 0.3."""
    spec = read_experiment(NAME)
    heights = {"pretrained": 50.0, "at_010": 55.0, "at_030": best, "at_100": 20.0}
    points = tuple(
        PointResult(
            name=p.name,
            title=p.title,
            state=p.state,
            control=p.control,
            seeds=(0, 1, 2),
            cells={
                m.name: Cell(values=(v - 0.1, v, v + 0.1), mean=v) for m in spec.measures if (v := heights.get(p.name))
            },
        )
        for p in spec.points
    )
    findings, verdict, reason = judge(spec.checks, {point.name: point.cells for point in points}, {})
    result = ExperimentResult(
        name=NAME,
        form=spec.digest(),
        quick=quick,
        zoo=zoo,
        zoo_digest=zoo,
        protocol="held_out",
        split_seed=3,
        images=(40, 60),
        points=points,
        findings=findings,
        verdict=verdict,
        reason=reason,
        seconds=1.0,
    )
    row = workspace.store.runs.submit("experiment", {"name": NAME}, name=spec.title, owner="test")
    key = zoo.encode().hex().ljust(64, "f" if quick else "e")
    with workspace.store.create(key, step="experiment") as folder:
        (folder / FILE).write_text(result.model_dump_json())
    workspace.store.runs.finish(row.id, key)
    return result


def test_every_claim_is_listed_with_its_verdict(open_app):
    app = open_app("experiments")
    assert not app.exception
    claims, practice = app.dataframe[0].value, app.dataframe[1].value
    assert {*claims["Claim"], *practice["Claim"]} == {read_experiment(name).claim for name in experiment_names()}
    assert claims["Verdict"].notna().all()
    assert practice["Verdict"].notna().all()
    assert set(practice["Paper"]) == {PRACTICE}
    assert PRACTICE not in set(claims["Paper"])
    assert any(PRACTICE in title.value for title in app.subheader)


def test_claims_are_filtered_by_paper_and_verdict(open_app):
    app = open_app("experiments")
    papers = {read_experiment(name).paper for name in experiment_names()}
    chosen = sorted(papers - {PRACTICE})[-1]
    app.multiselect(key="experiments.papers").set_value([chosen]).run()
    assert not app.exception
    assert set(app.dataframe[0].value["Paper"]) == {chosen}
    verdict = app.dataframe[0].value["Verdict"].iloc[0]
    app.multiselect(key="experiments.verdicts").set_value([verdict]).run()
    assert set(app.dataframe[0].value["Verdict"]) == {verdict}


def test_a_row_opens_its_claim_and_the_filter_is_there_again_behind_it(open_app):
    app = open_app("experiments")
    paper = read_experiment("lwptv-eta").paper
    app.multiselect(key="experiments.papers").set_value([paper]).run()
    first = app.dataframe[0].value["Claim"].iloc[0]
    app.session_state["experiments.all"] = {"selection": {"rows": [0], "columns": [], "cells": []}}
    app.run()
    assert not app.exception
    assert first in texts(app).replace("\\", "")
    assert list(app.query_params) == ["experiment"]
    app.button(key="experiments.back").click().run()
    assert app.multiselect(key="experiments.papers").value == [paper]


def test_a_filter_that_nothing_matches_says_so(open_app):
    rows = [(spec.paper, verdict_of(latest(spec)[0])) for spec in map(read_experiment, experiment_names())]
    paper = next(paper for paper, _ in rows if (paper, "seen here") not in rows)
    app = open_app("experiments")
    app.multiselect(key="experiments.papers").set_value([paper]).run()
    app.multiselect(key="experiments.verdicts").set_value(["seen here"]).run()
    assert not app.exception
    assert not app.dataframe
    assert "No claim matches" in texts(app)


def test_an_unknown_experiment_in_the_address_shows_the_list(open_app):
    app = opened(open_app, "nothing")
    assert not app.exception
    assert "What the papers claim" in app.title[0].value


def test_one_claim_shows_numbers_findings_and_provenance(open_app, finished):
    app = opened(open_app, NAME)
    assert not app.exception
    shown = texts(app).replace("\\", "")
    assert "seen here" in shown
    assert "80 against 55" in shown
    assert "n = 40–60 test images a task" in shown
    assert "split seed 3" in shown
    assert len(app.get("plotly_chart")) == 1


def test_what_is_asked_here_stands_apart_and_a_clause_names_what_explains_it(open_app):
    app = opened(open_app, "lwptv-accuracy")
    assert not app.exception
    shown = texts(app).replace("\\", "")
    claim, asked, controls = (
        shown.index(f"**{name}**") for name in ("What the claim comes down to", "Asked here", "Controls")
    )
    assert claim < shown.index("LwPTV raises Task Arithmetic out of domain.") < asked
    assert asked < shown.index("With λ chosen on validation images for both (asked here)") < controls
    assert "As well: Lowering λ to 0.20 is as accurate out of domain." in shown[claim:asked]


def test_what_was_chosen_is_a_table_with_what_was_tried(open_app):
    app = opened(open_app, "lwptv-text")
    assert not app.exception
    (table,) = [frame.value for frame in app.dataframe if "Tried" in frame.value]
    pruned = table[table["Point"].str.startswith("TIES + PwPTV")]
    assert list(pruned["Setting"]) == ["Scaling coefficient λ", "PwPTV: Pruning ratio η"]
    assert list(pruned["Tried"]) == ["0.5, 1.0, 2.0", "0.1, 0.7"]
    assert "By accuracy in domain, on validation texts." in texts(app).replace("\\", "")


def test_a_remark_links_the_experiments_that_it_names(open_app):
    app = opened(open_app, "tuned-merges")
    assert not app.exception
    shown = texts(app)
    assert "[Layers that can be thrown away](experiments?experiment=lwptv-accuracy)" in shown.replace("\\", "")
    assert "`lwptv" not in shown.replace("\\", "")
    assert "`python -m engine zoo build mini8-recipes`" in texts(opened(open_app, "lora-factors"))


def test_results_on_two_zoos_stand_side_by_side_with_their_spread(open_app, workspace, finished):
    finish(workspace, "made-experts2", 56.0)  # the result that comes along lies between the two
    app = opened(open_app, NAME)
    assert not app.exception
    tables = [frame.value for frame in app.table if "Spread" in frame.value]
    (table,) = tables
    first = table[table["Clause"] == plain(finished.findings[0].text)].iloc[0]
    assert {plain("made (made)"), plain("made-experts2 (made-e)")} < set(table.columns)
    assert first["Spread"] == "24"


def test_a_quick_result_stands_beside_a_long_one_and_is_called_so(open_app, workspace, finished):
    finish(workspace, "made", 52.0, quick=True)
    rows = open_app("experiments").dataframe
    (row,) = [table for frame in rows for table in frame.value.to_dict("records") if table["Zoo"].startswith("made")]
    assert row["Zoo"] == "made"
    app = opened(open_app, NAME)
    assert "80 against 55" in texts(app).replace("\\", "")
    assert any(plain("made, quick form (made)") in frame.value for frame in app.table)
    choice = app.selectbox(key=f"experiments.result.{NAME}")
    quick = next(option for option in choice.options if "quick form" in option)
    choice.select(quick).run()
    assert not app.exception
    assert "52 against 55" in texts(app).replace("\\", "")


def test_effects_of_the_list_are_of_clauses_that_the_verdict_is_of(open_app):
    rows = {row["Claim"]: row for frame in open_app("experiments").dataframe for row in frame.value.to_dict("records")}
    spec = read_experiment("distil-then-merge")
    result, _ = latest(spec)
    clauses = [
        f for check, f in zip(spec.checks, result.findings, strict=True) if not check.control and not check.asked
    ]
    assert result.findings[0] != clauses[0]
    assert rows[spec.claim]["Effect"] == effect(clauses[0]).lstrip("+")


def test_running_it_again_submits_what_the_form_says(open_app, workspace):
    app = opened(open_app, NAME)
    app.text_input(key=f"experiments.zoo.{NAME}").set_value(str(workspace.zoo))
    app.button(key=f"FormSubmitter:experiments.form.{NAME}-Run").click().run()
    assert not app.exception
    row = workspace.store.runs.list(kinds=["experiment"])[0]
    assert row.request == {"name": NAME, "zoo": str(workspace.zoo), "quick": True}
    assert "Repeat it" not in texts(app)  # its progress is shown instead


def test_a_zoo_that_is_not_there_is_said_and_nothing_submitted(open_app, workspace):
    app = opened(open_app, NAME)
    app.text_input(key=f"experiments.zoo.{NAME}").set_value("elsewhere")
    app.button(key=f"FormSubmitter:experiments.form.{NAME}-Run").click().run()
    assert not app.exception
    assert "There is no zoo 'elsewhere'" in app.error[0].value.replace("\\", "")
    assert not workspace.store.runs.list(kinds=["experiment"])


def test_a_failure_is_explained_and_may_be_repeated(open_app, workspace):
    row = workspace.store.runs.submit("experiment", {"name": NAME}, name="Scaling", owner="test")
    workspace.store.runs.fail(row.id, "There is no zoo 'elsewhere'.", "ZooError")
    app = opened(open_app, NAME)
    assert not app.exception
    assert "There is no zoo" in texts(app).replace("\\", "")
    assert "Repeat it" in texts(app)


def test_networks_without_a_zoo_stand_below_the_claims(open_app):
    app = open_app("experiments")
    app.session_state["experiments.networks"] = True
    app.run()
    assert not app.exception
    assert "Git Re-Basin" in texts(app).replace("\\", "")
    assert "`python -m engine lesson measure re-basin`" in texts(app)
    found = next(table.value for table in app.dataframe if "Clause" in table.value)
    assert found["Clause"].str.startswith("Control: ").any()
    assert set(found["Here"]) & {"seen here", "holds here", "seen, and a control does as well"}
