"""Worklists hold the images and classes that they name, and no image that is not shown."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from pages.features.data import Space, colour_of, labels_of
from pages.features.neighbours import searched
from pages.features.picks import class_table, picks_of, rows_of_class, totals_of
from tests.made_run import made_report, made_samples

LABEL = [0, 0, 1, 1, 0, 1]
PREDICTED = {
    "merged": [0, 1, 1, 0, 1, 1],  # wrong: rows 1, 3, 4
    "surgery": [1, 0, 1, 1, 1, 1],  # breaks row 0; repairs rows 1 and 3
    "expert": [0, 0, 1, 1, 1, 1],  # wrong: row 4
}
SHIFT = [1.0, 6.0, 2.0, 5.0, 4.0, np.nan]
CHANCE = {"merged": [0.9] * 6, "surgery": [0.3, 0.8, 0.9, 0.9, 0.2, 0.7]}
EVERY = np.ones(6, bool)


@pytest.fixture
def space():
    """Six images of two tasks, three each."""
    label, task = np.array(LABEL), np.array([0, 0, 0, 1, 1, 1])
    points = {state: np.zeros((6, 2)) for state in PREDICTED}
    numbers = {"shift": {"merged": np.array(SHIFT)}, "probability": {s: np.array(v) for s, v in CHANCE.items()}}
    prediction = {state: np.array(values) for state, values in PREDICTED.items()}
    return Space("made", {}, ("digits", "signs"), task, np.arange(6), label, points, prediction, numbers)


def test_images_are_listed_by_what_happened_to_them(space):
    found = {name: rows.tolist() for name, rows in picks_of(space, "surgery", EVERY, count=2).items()}
    assert found == {"shifted": [1, 3], "lost": [1, 3], "repaired": [1, 3], "broken": [0], "uncertain": [0, 4]}


def test_images_that_are_not_shown_are_in_no_list(space):
    shown = np.array([False, False, True, True, True, True])
    found = {name: rows.tolist() for name, rows in picks_of(space, "surgery", shown, count=2).items()}
    assert found == {"shifted": [3, 4], "lost": [3], "repaired": [3], "uncertain": [4, 5]}


def test_without_a_calibrator_the_merged_model_is_the_uncertain_one(space):
    found = picks_of(space, None, EVERY, count=9)
    assert set(found) == {"shifted", "lost", "uncertain"}
    assert found["shifted"].tolist() == [0, 1, 2, 3, 4]  # an unknown shift ranks nowhere


def test_classes_are_counted_farthest_first(space):
    picks = picks_of(space, "surgery", EVERY)
    table = class_table(space, picks, EVERY, made_report())
    assert table["shift"].iloc[:-1].tolist() == [5.0, 4.0, 3.5]
    first = table.iloc[0]
    assert (first["images"], first["lost"], first["repaired"], first["broken"]) == (2, 1, 1, 0)
    assert table["images"].sum() == 6
    assert table["broken"].sum() == 1
    number = first["number"]
    assert rows_of_class(space, number, EVERY).tolist() == [3, 5]
    assert rows_of_class(space, number, EVERY, picks["lost"]).tolist() == [3]


def test_answers_that_are_numbers_are_neither_lost_nor_wrong(space):
    graded = replace(space, graded=("digits",))
    before, after = picks_of(space, "surgery", EVERY), picks_of(graded, "surgery", EVERY)
    own = np.flatnonzero(space.task == 0)
    assert np.isin(before["lost"], own).any()
    for name in ("lost", "repaired", "broken"):
        assert not np.isin(after.get(name, []), own).any()
    report = made_report()
    right = colour_of(graded, ("merged", "expert"), "correct", report, "light").values
    assert (right[:, own] == -1).all()
    assert {*right[:, space.task == 1].ravel().tolist()} <= {0, 1}
    assert labels_of(graded, ("merged",), report).graded == [
        sum(len(report.tasks[task].classes) for task in space.tasks)
    ]


def test_a_card_names_an_image_by_its_row_in_the_data(space):
    assert labels_of(space, ("merged",), made_report()).index.tolist() == space.index.tolist()


def test_totals_count_images_that_are_not_drawn():
    run = made_report()
    table = made_samples(run)
    totals = totals_of(table, ("digits", "signs"), "surgery")
    rows = table[table["split"] == "evaluate"]
    for task in ("digits", "signs"):
        one = totals_of(table, (task,), "surgery")
        own = rows[rows["task"] == task]
        told = {state: own[own["state"] == state].sort_values("index") for state in ("merged", "expert", "surgery")}
        right = {state: (part["prediction"] == part["label"]).to_numpy() for state, part in told.items()}
        assert one["lost"] == (right["expert"] & ~right["merged"]).sum()
        assert one["repaired"] == (right["surgery"] & ~right["merged"]).sum()
        assert one["broken"] == (right["merged"] & ~right["surgery"]).sum()
        totals = {name: count - one[name] for name, count in totals.items()}
    assert set(totals.values()) == {0}, "tasks sum up"
    assert set(totals_of(table, ("digits",), None)) == {"lost"}


def test_a_lone_image_of_its_task_has_no_neighbours(tmp_path, monkeypatch, space):
    rows = pd.DataFrame({"task": ["digits"] * 3, "state": ["pretrained"] * 3, "index": [0, 1, 2]})
    monkeypatch.setattr("pages.features.neighbours.samples", lambda run: rows)
    save_file({"merged/digits/evaluate": np.eye(3, dtype=np.float32)}, tmp_path / "features.safetensors")
    run = SimpleNamespace(folder=tmp_path)
    found, among = searched(run, space, 0, ("merged",))
    assert (sorted(found["merged"][0]), among) == ([1, 2], 2)
    alone = replace(space, task=np.array([0, 1, 1, 1, 1, 1]))
    assert searched(run, alone, 0, ("merged",)) is None
