"""Work that pages do once for all who look at the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from engine import figures
from engine.catalog.titles import recipe_title
from engine.errors import EngineError
from engine.figures.paired import difference_table
from engine.recipe import parse_recipe
from pages.sections import accuracy_bars, cards
from pages.shared import differences, state
from pages.shared.drawn import drawn
from pages.shared.state import open_run, samples, scored_by_task


def test_intervals_are_drawn_from_the_same_images_once(workspace, monkeypatch):
    made = []

    def counted(*given):
        made.append(given)
        return difference_table(*given)

    monkeypatch.setattr(differences, "difference_table", counted)
    first, second = (open_run(workspace.finished(name).id) for name in ("one", "two"))
    tables = [differences.paired_table({"two": (second, "merged")}, (first, "merged")) for _ in range(3)]
    assert len(made) == 1
    pd.testing.assert_frame_equal(tables[0], tables[2])
    differences.paired_table({"two": (second, "surgery")}, (first, "merged"))
    differences.paired_table({"2": (second, "merged")}, (first, "merged"))
    assert len(made) == 3


def test_states_are_those_of_the_table_of_samples(workspace):
    view = open_run(workspace.finished("one").id)
    table = samples(view)
    scored = scored_by_task(view)
    assert set(scored) == set(table["task"])
    for task, states in scored.items():
        assert states == set(table.loc[table["task"] == task, "state"])


def test_a_figure_of_a_run_is_made_once_for_each_choice(workspace):
    made = []

    def make():
        made.append(figures.accuracy_bars(first.report, "light"))
        return made[-1]

    first, second = (open_run(workspace.finished(name).id) for name in ("one", "two"))
    assert {id(drawn(first, ("accuracy", "light"), make)) for _ in range(3)} == {id(made[0])}
    drawn(first, ("accuracy", "dark"), make)
    drawn(second, ("accuracy", "light"), make)
    assert len(made) == 3


def test_showing_a_shared_figure_does_not_change_it(workspace, open_app, monkeypatch):
    workspace.example()
    shown = []

    def noted(*given):
        drawing = drawn(*given)
        shown.append((drawing, drawing.figure.to_json()))
        return drawing

    monkeypatch.setattr(accuracy_bars, "drawn", noted)
    for _ in range(2):
        assert not open_app("accuracy").exception
    (first, before), (second, after) = shown
    assert first is second
    assert before == after == first.figure.to_json()


def test_a_row_of_pictures_is_kept_once_there_is_one(tmp_path):
    asked = []

    def none():
        asked.append(0)

    def tiles():
        asked.append(1)
        return np.zeros((2, 4, 4, 3), np.uint8)

    path = str(tmp_path / "pictures")
    for _ in range(2):
        with pytest.raises(EngineError, match="not at hand"):
            cards._row_of_file(path, (1, 2), none)
    rows = {cards._row_of_file(path, (1, 2), tiles) for _ in range(3)}
    assert len(rows) == 1
    assert asked == [0, 0, 1]
    cards._row_of_file(path, (1, 3), tiles)
    assert asked == [0, 0, 1, 1]


def test_titles_of_runs_without_a_name_are_made_of_their_recipes_once(workspace, monkeypatch):
    read = []
    monkeypatch.setattr(state, "parse_recipe", lambda document: read.append(document) or parse_recipe(document))
    row = workspace.submitted("", workspace.recipe())
    titles = {state.run_title(row) for _ in range(3)}
    assert titles == {recipe_title(workspace.recipe())}
    assert len(read) == 1
    assert state.run_title(replace(row, name="Mine")) == "Mine"
