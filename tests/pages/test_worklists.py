"""Worklists, the inspector and neighbours of the feature view."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from tests.made_run import EVALUATED, made_report, made_samples, write_run
from tests.pages.views import finish, made_zoo, only, open_page, texts


def test_a_pick_selects_images_and_shows_what_models_say(store, key):
    finish(store, key)
    app = open_page("representations")
    only(app.button, "Repaired").click().run()
    assert not app.exception
    count = int(only(app.button, "Repaired").label.split("(")[1].rstrip(")"))
    assert f"{count} images selected" in texts(app)
    assert "Distance to the expert's feature" in texts(app)
    table = app.dataframe[0].value
    assert (table["merged prediction"] != table["true class"]).all()
    assert (table["surgery prediction"] == table["true class"]).all()


def test_worklists_of_images_say_what_they_hold(store, key):
    finish(store, key)
    app = open_page("representations")
    lists = [button for button in app.button if button.key.startswith("features.pick.")]
    names = ["Most shifted", "Lost by merging", "Repaired by Surgery", "Most uncertain"]  # none is broken
    assert [button.label.split(" (")[0] for button in lists] == names
    assert all(button.help for button in lists)
    only(app.button, "Most uncertain").click().run()
    chances = app.dataframe[0].value["surgery probability"]
    report = made_report()
    table = made_samples(report)
    known = table[(table["state"] == "surgery") & table["task"].isin(["digits", "signs"])]["probability"]
    assert sorted(chances) == sorted(known)[: len(chances)]


def test_a_worklist_of_classes_selects_what_is_clicked(store, key):
    finish(store, key)
    app = open_page("representations")
    app.session_state["features.classes"] = True
    app.run()
    table = app.dataframe[0].value
    assert table["shift"].is_monotonic_decreasing
    assert table["images"].sum() == 2 * EVALUATED
    for name, start in (("lost", "Lost by merging"), ("repaired", "Repaired by Surgery")):
        assert table[name].sum() == int(only(app.button, start).label.split("(")[1].rstrip(")"))
    row = int(table["lost"].argmax())
    count = int(table["lost"].iloc[row])
    pick = {"selection": {"rows": [], "columns": [], "cells": [(row, "lost")]}}
    app.session_state["features.classes.table"] = pick
    app.run()
    assert not app.exception
    assert f"{count} image{'s' * (count != 1)} selected" in texts(app)
    chosen = app.dataframe[1].value
    assert set(chosen["true class"]) == {table["class"].iloc[row]}
    assert (chosen["merged prediction"] != chosen["true class"]).all()
    only(app.button, "Repaired").click().run()  # a later choice holds although the cell stays marked
    repaired = int(only(app.button, "Repaired").label.split("(")[1].rstrip(")"))
    assert f"{repaired} images selected" in texts(app)


def test_a_link_to_a_worklist_selects_it_until_something_else_is(store, key):
    run = finish(store, key)
    app = open_page("representations", run=run, list="repaired")
    repaired = int(only(app.button, "Repaired").label.split("(")[1].rstrip(")"))
    assert f"{repaired} images selected" in texts(app)
    app.run()
    assert app.query_params["list"] in ("repaired", ["repaired"])
    only(app.button, "Most uncertain").click().run()
    assert app.query_params["list"] in ("uncertain", ["uncertain"])
    app.session_state["features.picked"] = (0,)
    app.run()
    assert "1 image selected" in texts(app)
    assert "list" not in app.query_params


def test_the_address_names_any_other_selection_by_its_images(store, key):
    run = finish(store, key)
    app = open_page("representations", run=run)
    app.session_state["features.picked"] = (0, 3)
    app.run()
    picked = np.ravel(app.query_params["picked"])[0]
    again = open_page("representations", run=run, picked=picked)
    assert "2 images selected" in texts(again)
    assert again.dataframe[0].value.equals(app.dataframe[0].value)
    only(again.button, "Repaired").click().run()
    assert "picked" not in again.query_params


@pytest.mark.parametrize("asked", [{"list": "<b>"}, {"picked": "00000000.AAAA"}, {"picked": "<b>"}])
def test_a_link_to_what_is_not_there_selects_nothing_and_says_so(store, key, asked):
    run = finish(store, key)
    app = open_page("representations", run=run, **asked)
    assert not app.exception
    assert "Nothing is selected. Drag around points" in texts(app)
    assert "images that are not in this view" in app.toast[0].value
    assert not set(asked) & set(app.query_params)


def test_an_image_of_several_can_be_taken_alone_to_see_its_neighbours(store, key, tmp_path):
    features = {
        f"{s}/{t}/evaluate": np.eye(EVALUATED, 3, dtype=np.float32)
        for s in ("merged", "expert")
        for t in ("digits", "signs")
    }
    finish(store, key, zoo=made_zoo(tmp_path / "zoo"), features=features)
    app = open_page("representations")
    only(app.button, "Most shifted").click().run()
    assert "Nearest in feature space" not in texts(app)
    only(app.button, "Neighbours").click().run()
    assert not app.exception
    assert "1 image selected" in texts(app)
    assert "Nearest in feature space" in texts(app)


def test_images_of_the_zoo_are_shown(store, key, tmp_path):
    zoo = made_zoo(tmp_path / "zoo")
    finish(store, key, zoo=zoo)
    app = open_page("representations")
    assert "not at hand" not in texts(app)
    only(app.button, "Most shifted").click().run()
    assert not app.exception
    assert len(app.get("image")) == 12


def test_one_image_has_neighbours_in_feature_space(store, key, tmp_path):
    features = {f"{s}/digits/evaluate": np.eye(EVALUATED, 3, dtype=np.float32) for s in ("merged", "expert")}
    finish(store, key, zoo=made_zoo(tmp_path / "zoo"), features=features)
    app = open_page("representations")
    app.session_state["features.picked"] = (0,)
    app.run()
    assert not app.exception
    assert "1 image selected" in texts(app)
    assert "Merged: 2 of 8 are of the same class" in texts(app)


def test_an_example_has_the_neighbours_that_were_kept(store, tmp_path, monkeypatch):
    recipe = made_report().recipe.model_copy(update={"zoo": str(made_zoo(tmp_path / "zoo"))})
    folder = write_run(tmp_path / "examples" / "first", made_report(recipe=recipe))
    (tmp_path / "examples" / "index.json").write_text(json.dumps({"examples": [{"name": "first"}]}))
    first = pd.read_parquet(folder / "projections" / "tsne" / "projection.parquet").query("state == 'merged'")
    kept = first[first["task"] == "digits"]["index"].tolist()
    rows = [("merged", "digits", kept[0], rank, index, 0.1 * rank) for rank, index in enumerate(kept[1:4])]
    names = ["state", "task", "index", "rank", "neighbour", "distance"]
    pd.DataFrame(rows, columns=names).to_parquet(folder / "neighbours.parquet")
    monkeypatch.setattr("pages.shared.state.EXAMPLES", tmp_path / "examples")
    app = open_page("representations")
    app.session_state["features.picked"] = (0,)
    app.run()
    assert not app.exception
    assert "Nearest in feature space" in texts(app)
    assert re.search(r"Merged: \d of 3 are of the same class, distances 0\.000 to 0\.200", texts(app))
    app.session_state["features.picked"] = (1,)
    app.run()
    assert "not kept with the example" in texts(app)
