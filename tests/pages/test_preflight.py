"""The lab before Run is pressed: an estimate at once, findings when the check has ended, never a refusal."""

import yaml
from streamlit.testing.v1 import AppTest

from engine.pipeline.preflight.estimate import Estimate, FindingPart, Preflight


def captions(app: AppTest) -> str:
    return " ".join(element.value for element in app.caption)


def checks(workspace):
    return workspace.store.runs.list(kinds=("preflight",))


def finish(workspace, row, *findings, seconds=125.0, parts={"merge": 120.0}):  # noqa: B006 (read only)
    """End a check as the engine would."""
    guess = Estimate(seconds=seconds, peak_memory_bytes=3 * 10**9, disk_bytes=5 * 10**8, basis="made", parts=parts)
    found = Preflight(findings=tuple(FindingPart(level=level, text=text) for level, text in findings), estimate=guess)
    with workspace.store.create("ab" * 32, step="preflight") as folder:
        (folder / "preflight.json").write_text(found.model_dump_json())
    workspace.store.runs.claim_next("engine")
    workspace.store.runs.finish(row.id, "ab" * 32)


def test_a_change_of_method_is_estimated_at_once_and_checked_once(workspace, open_app):
    workspace.example()
    app = open_app()
    assert not checks(workspace), "the run shown needs no check"
    app.slider(key="form.w.merge.task_arithmetic.scaling.slider").set_value(0.55).run()
    assert not checks(workspace), "λ costs nothing else"
    assert "About" in captions(app)
    app.selectbox(key="form.w.merge").set_value("ties").run()
    assert not app.exception
    (row,) = checks(workspace)
    assert "checking" in captions(app)
    app.slider(key="form.w.merge.ties.scaling.slider").set_value(0.7).run()
    assert [found.id for found in checks(workspace)] == [row.id]
    app.selectbox(key="form.w.merge").set_value("weight_average").run()
    second, first = checks(workspace)
    assert (first.id, first.state, second.state) == (row.id, "cancelled", "queued")


def test_what_is_in_the_store_is_said_of_the_settings_that_were_checked(workspace, open_app):
    workspace.example()
    app = open_app()
    app.selectbox(key="form.w.merge").set_value("ties").run()
    finish(workspace, checks(workspace)[0], seconds=0.1, parts={"merge": 0.1})
    app.run()
    assert "All of it is in the store already" in captions(app)
    app.slider(key="form.w.merge.ties.scaling.slider").set_value(0.7).run()
    assert len(checks(workspace)) == 1
    assert "in the store already" not in captions(app)
    assert "About" in captions(app)


def test_findings_are_listed_and_do_not_block_run(workspace, open_app):
    workspace.example()
    app = open_app()
    app.selectbox(key="form.w.merge").set_value("ties").run()
    (row,) = checks(workspace)
    finish(
        workspace, row, ("error", "Expert 'digits' has 3 NaN."), ("warning", "Little memory."), ("note", "base: fine")
    )
    app.run()
    assert not app.exception
    said = captions(app).replace("\\", "")
    assert "About 2 min 5 s · 3.0 GB memory · 500 MB disk" in said
    assert "1 fault" in said
    assert "Expert 'digits' has 3 NaN." in said
    assert "1 part is in order" in said
    assert "Merge 2 min 0 s. By made." in said
    assert not app.button(key="form.run").disabled
    app.button(key="form.run").click().run()
    assert len(workspace.store.runs.list(kinds=("run",))) == 1


def test_running_withdraws_a_check_at_work(workspace, open_app):
    workspace.example()
    app = open_app()
    app.selectbox(key="form.w.merge").set_value("ties").run()
    app.button(key="form.run").click().run()
    assert [row.state for row in checks(workspace)] == ["cancelled"]


def test_a_zoo_that_cannot_be_read_has_no_estimate(workspace, open_app):
    workspace.example()
    document = yaml.safe_load((workspace.zoo / "zoo.yaml").read_text())
    document["backbone"]["architecture"] = "ViT-Q-99"
    (workspace.zoo / "zoo.yaml").write_text(yaml.safe_dump(document))
    app = open_app()
    app.selectbox(key="form.w.merge").set_value("ties").run()
    assert not app.exception
    assert "No estimate" in captions(app)
