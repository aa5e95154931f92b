"""Alignment from the page: the form of every method, the work, what it did, and zoos that stay as they are."""

import json
import os

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from engine.catalog import ALIGNMENTS
from engine.pipeline.local import run_recipe
from engine.recipe import Recipe
from tests.pages.test_train import carry_out, texts
from tests.pipeline.test_align import shuffled, with_base
from tests.tiny_zoo import make_zoo

ALIGN = {"zoo.view": "Align experts"}


@pytest.fixture
def zoo(tmp_path):
    """The first expert, and the base that it starts from, have their units in another order."""
    folder = make_zoo(tmp_path / "tiny", experts=("alpha", "beta"))
    expert = folder / "experts" / "alpha.safetensors"
    for source, target in ((expert, expert), (folder / "base.safetensors", folder / "theirs.safetensors")):
        save_file(shuffled(load_file(source), seed=3), target)
    with_base(folder)
    return folder


def opened(open_app, zoo, **query):
    app = open_app("zoo", zoo=str(zoo), **ALIGN, **query)
    assert not app.exception
    return app


def said(app):
    return texts(app).replace("\\", "")


def test_experts_are_aligned_merged_and_looked_at(workspace, open_app, zoo):
    assert "Of another base, not aligned" in said(open_app("zoo", zoo=str(zoo), **{"zoo.view": "Experts"}))
    app = opened(open_app, zoo)
    assert "Not aligned yet: alpha." in said(app)
    assert "In the zoo: alpha; its entry changes." in said(app)
    app.button(key="align.go").click().run()
    (row,) = workspace.store.runs.list(kinds=("align",))
    assert row.request["experts"] == ["alpha"]
    assert "Cancel" in [button.label for button in app.button]
    carry_out(workspace.store, row)
    app = opened(open_app, zoo)
    assert "1 aligned expert in the zoo" in said(app)
    assert "Every expert of another base is aligned: alpha (Weight matching)." in said(app)
    table, moved = (part.value for part in app.dataframe)
    assert list(table) == ["listed", "before", "after", "apart"]
    assert table["listed"].tolist() == ["alpha"]
    assert table["after"][0] > table["before"][0]
    assert table["apart"][0] < 1e-10
    assert moved["group"].tolist()[:2] == ["residual", "units of block 1"]
    assert moved["alpha"].min() > 0
    assert "matched on weights alone, compared on 8 adapt images" in said(app)
    assert "Nothing is drawn, so there is no seed" in said(app)
    assert "once a run has it" in said(app)
    app.button(key="align.merge").click().run()
    assert app.multiselect(key=f"form.w.experts.{zoo}").value == ["alpha", "beta"]
    assert "starts from another base" not in said(app)
    assert "its order of units: Weight matching" in said(open_app("zoo", zoo=str(zoo), **{"zoo.view": "Experts"}))


def test_the_path_to_an_aligned_expert_is_one_link_away(workspace, open_app, zoo):
    app = opened(open_app, zoo)
    app.button(key="align.go").click().run()
    carry_out(workspace.store, workspace.store.runs.list(kinds=("align",))[0])
    probe = {"samples_per_task": 8}
    run_recipe(Recipe.model_validate({"zoo": str(zoo), "experts": ["alpha", "beta"], "probe": probe}), workspace.store)
    app = opened(open_app, zoo)
    assert "once a run has it" not in said(app)
    (run,) = workspace.store.runs.list(kinds=("run",))
    (link,) = [part.proto for part in app.get("page_link") if "loss barrier" in part.proto.label]
    query = dict(part.split("=") for part in link.query_string.split("&"))
    assert query == {
        "run": run.id,
        "premerging.view": "Alignment",
        "premerging.start": "Pretrained",
        "premerging.end": "alpha",
        "premerging.shuffle": "false",
    }
    there = open_app("premerging", **query)
    assert not there.exception
    ends = [there.selectbox(key=f"premerging.{end}").value for end in ("start", "end")]
    assert (ends, there.toggle(key="premerging.shuffle").value) == (["pretrained", "alpha"], False)


@pytest.mark.parametrize("method", ALIGNMENTS)
def test_every_method_has_a_form(workspace, open_app, zoo, method):
    app = opened(open_app, zoo)
    app.selectbox(key="align.method").set_value(method).run()
    row = ALIGNMENTS[method]
    for part in (row.summary, row.source):
        assert part in said(app)
    assert row.equation in " ".join(part.value for part in app.latex)
    app.toggle(key="align.keep").set_value(True).run()
    assert f"In the zoo: alpha-{method}." in said(app)
    app.button(key="align.go").click().run()
    (asked,) = workspace.store.runs.list(kinds=("align",))
    assert (asked.request["method"], asked.request["called"]) == (method, method)
    assert set(asked.request["params"]) == set(row.params.model_fields)


def test_what_cannot_be_aligned_is_said_before_and_nothing_is_lost(workspace, open_app, zoo):
    path = zoo / "data" / "alpha.npz"
    with np.load(path) as found:
        np.savez(zoo / "data" / "new.npz", **{name: found[name] for name in found.files if "val" not in name})
    (zoo / "data" / "new.npz").replace(path)
    app = opened(open_app, zoo)
    app.selectbox(key="align.method").set_value("sinkhorn").run()
    assert "needs val or train images of 'alpha'" in said(app)
    assert app.button(key="align.go").disabled
    app.selectbox(key="align.method").set_value("weight_matching").run()
    app.number_input(key="align.weight_matching.sweeps").set_value(7).run()
    app.toggle(key="align.keep").set_value(True).run()
    app.text_input(key="align.called.weight_matching").set_value("standard").run()
    assert "calls the way of expert 'alpha' 'standard' already" in said(app)
    app.text_input(key="align.called.weight_matching").set_value("mine").run()
    key = f"align.experts.{zoo}.alpha"
    app.multiselect(key=key).set_value([]).run()
    assert "choose at least one expert" in said(app)
    app.multiselect(key=key).set_value(["alpha"]).run()
    app.button(key="align.go").click().run()
    (row,) = workspace.store.runs.list(kinds=("align",))
    assert (row.request["params"]["sweeps"], row.request["called"]) == (7, "mine")


def test_an_alignment_that_failed_says_why_and_can_go_on(workspace, open_app, zoo):
    app = opened(open_app, zoo)
    app.button(key="align.go").click().run()
    (row,) = workspace.store.runs.list(kinds=("align",))
    reason = "Aligning needs equal widths: visual.proj has shape (32, 16) in one and shape (32, 15) in the other."
    workspace.store.runs.fail(row.id, reason, "AlignmentError")
    app = opened(open_app, zoo)
    assert reason in said(app)
    assert app.button(key="align.go")
    app.button(key="align.resume").click().run()
    assert workspace.store.runs.get(row.id).state == "queued"


def test_a_zoo_that_cannot_be_written_is_copied(workspace, open_app, zoo, monkeypatch):
    asked = os.access
    monkeypatch.setattr("os.access", lambda path, *how, **more: str(path) != str(zoo) and asked(path, *how, **more))
    app = opened(open_app, zoo)
    assert "The folder of the zoo 'tiny' cannot be written. Align its experts in a copy of it." in said(app)
    assert not [button for button in app.button if button.key == "align.go"]
    app.button(key="align.copy.button").click().run()
    (row,) = workspace.store.runs.list(kinds=("copy",))
    assert row.request == {"zoo": str(zoo), "name": "tiny-aligned"}


def test_a_zoo_of_one_base_has_nothing_to_align(open_app):
    app = open_app("zoo", zoo="mini8", **ALIGN)
    assert not app.exception
    view = app.segmented_control(key="zoo.view")
    assert "Align experts" not in view.options
    assert view.value == "Images"


def test_experts_of_another_base_lead_to_their_alignment(workspace, open_app, zoo):
    """After their training, where a merge would be refused."""
    row = workspace.store.runs.submit("finetune", {"zoo": str(zoo)}, name="Standard: alpha", requested_by="page")
    workspace.store.runs.claim_next("test", ("finetune",))
    record = {"validation_accuracy": {"base": 30.0, "expert": 90.0}, "images": {"validation": 12}, "start": "other"}
    with workspace.store.create("e" * 64, step="adopt_experts", version=1, label="made") as folder:
        (folder / "experts.json").write_text(json.dumps({"alpha": record}))
    workspace.store.runs.finish(row.id, "e" * 64)
    app = open_app("zoo", zoo=str(zoo), **{"zoo.view": "Train experts"})
    app.button(key="train.align").click().run()
    assert not app.exception
    assert app.segmented_control(key="zoo.view").value == "Align experts"
    assert "Not aligned yet: alpha." in said(app)
