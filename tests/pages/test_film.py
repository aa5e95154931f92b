"""Films on the pages: what is packed for the browser, where the slider begins, whom the page believes."""

import hashlib
import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from engine.errors import StoreError
from engine.manifest import ASSETS
from engine.pipeline.views.film import FILM
from engine.report import read_report
from pages.features.data import Space, colour_of
from pages.features.film import film_colour, film_packet, read_film
from pages.features.film_maker import frame_values
from pages.features.film_view import _is_news, films_of
from pages.features.selection import Exchange, Selection
from pages.shared.state import RunView, open_run

EXAMPLE = ASSETS / "examples" / "task-arithmetic"
ROOT = Path(__file__).resolve().parents[2]
PLACE = "merge.params.scaling"


@pytest.fixture(scope="module")
def film():
    return read_film(EXAMPLE / "films" / PLACE, "film")


@pytest.fixture(scope="module")
def recipe():
    return read_report(EXAMPLE).recipe


def test_the_film_begins_at_the_run_itself(film, recipe):
    assert film.texts[film.own_frame(recipe)] == "0.3"
    other = recipe.model_copy(update={"merge": recipe.merge.model_copy(update={"params": {"scaling": 0.62}})})
    assert film.texts[film.own_frame(other)] == "0.6"
    assert film.frame_of("0.7") == 14
    assert film.frame_of("0.71") is None


def test_a_packet_holds_every_frame_in_few_bytes(film, recipe):
    states = film.shown(recipe)
    assert states == ("merged", "prob_surgery", "expert")
    packet = film_packet(film, "key", states, recipe)
    assert len(packet) < 2_000_000
    (length,) = struct.unpack("<I", packet[:4])
    header = json.loads(packet[4 : 4 + length])
    assert header["columns"]["points0"] == {
        "dtype": "i2",
        "shape": [21, len(film), 2],
        "offset": header["columns"]["points0"]["offset"],
    }
    assert header["columns"]["points2"]["shape"] == [1, len(film), 2]
    entry = header["columns"]["index"]
    rows = np.frombuffer(packet, f"<{entry['dtype']}", len(film), offset=4 + length + entry["offset"])
    assert rows.tolist() == film.index.tolist(), "an image is named as on other pages"
    merged = header["film"]["panels"][0]
    report = read_report(EXAMPLE)
    assert merged["curve"][6] == pytest.approx(report.average["merged"].within, abs=1e-3)
    left, bottom, right, top = header["bounds"]
    assert left < right
    assert bottom < top


@pytest.mark.parametrize(
    ("place", "state"),
    [
        ("calibrators.0.params.steps", "surgery"),
        ("calibrators.0.params.rank", "surgery"),
        ("calibrators.1.params.hidden", "prob_surgery"),
        ("experts", "prob_surgery"),
    ],
)
def test_a_film_about_a_calibrator_shows_that_one_and_it_moves(recipe, place, state):
    film = read_film(EXAMPLE / "films" / place, "film")
    assert film.shown(recipe) == ("merged", state, "expert")
    points = film.arrays[f"{state}/points"]
    assert np.abs(points[0].astype(int) - points[-1]).max() > 100
    film_packet(film, "key", film.shown(recipe), recipe)


def test_a_packet_says_whose_answers_are_numbers(film, recipe):
    def graded(film):
        packet = film_packet(film, "key", ("merged",), recipe)
        return json.loads(packet[4 : 4 + struct.unpack("<I", packet[:4])[0]])["graded"]

    assert graded(film) == []
    without = {
        state: tasks | {film.tasks[1]: [None] * len(tasks[film.tasks[1]])}
        for state, tasks in film.document["accuracy"].items()
    }
    other = replace(film, document={**film.document, "accuracy": without})
    assert graded(other) == [sum(len(task["classes"]) for task in film.document["tasks"]) + 1]


@pytest.mark.parametrize("choice", ["correct", "task", "shift"])
def test_colours_of_a_film(film, recipe, choice):
    colour = film_colour(film, film.shown(recipe), choice)
    assert colour.live == (None if choice == "task" else choice)
    assert np.asarray(colour.values).shape[-1] == len(film)
    if choice == "shift":
        moved = [film.arrays[f"{state}/shift"] for state in film.shown(recipe) if state != "expert"]
        known = np.concatenate([part[part < np.iinfo(np.uint16).max] for part in moved]) * film.document["shift_step"]
        assert (colour.low, colour.high) == pytest.approx((known.min(), known.max()))
        assert colour.low > 0, "the expert itself, at 0, does not stretch the scale"


def test_the_scale_of_a_run_begins_at_its_smallest_shift():
    shift = {"merged": np.array([5.0, np.nan, 7.0]), "expert": np.zeros(3)}
    rows = np.zeros(3, int)
    space = Space("key", {}, ("digits",), rows, rows, rows, {}, numbers={"shift": shift})
    report = read_report(EXAMPLE)
    assert colour_of(space, ("merged", "expert"), "shift", report, "light").low == 5.0
    assert colour_of(space, ("expert",), "shift", report, "light").low == 0.0


def test_a_damaged_film_is_told(tmp_path):
    (tmp_path / "film.json").write_text("{}")
    with pytest.raises(StoreError, match="Make it again"):
        read_film(tmp_path, "film")


@pytest.mark.parametrize(
    "told",
    [
        None,
        "7",
        {"key": "other", "frame": 7, "revision": 9},
        {"key": "mine", "frame": 70, "revision": 9},
        {"key": "mine", "frame": "7", "revision": 9},
        {"key": "mine", "frame": 7, "revision": 1},
    ],
)
def test_only_news_of_this_film_move_it(told):
    assert not _is_news(told, "mine", 1, 20)
    assert _is_news({"key": "mine", "frame": 7, "revision": 2}, "mine", 1, 20)


@pytest.mark.parametrize(("asked", "kept"), [("0.6", True), ("9.9", False), ("0.3", False)])
def test_the_address_holds_the_frame_where_it_is_not_the_run_itself(monkeypatch, tmp_path, asked, kept):
    monkeypatch.setenv("MERGELENS_STORE", str(tmp_path))
    monkeypatch.setattr("pages.shared.service.ensure_service", lambda store: "not started in tests")
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    app.query_params["run"] = "task-arithmetic"
    app.query_params["at"] = asked
    app.run()
    assert not app.exception
    assert ("at" in app.query_params) == kept
    assert any("between two frames points are interpolated" in caption.value for caption in app.caption)


def test_points_selected_in_a_film_lead_to_their_causes(monkeypatch, tmp_path, film):
    monkeypatch.setenv("MERGELENS_STORE", str(tmp_path))
    monkeypatch.setattr("pages.shared.service.ensure_service", lambda store: "not started in tests")
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    app.query_params["run"] = "task-arithmetic"
    app.run()
    assert not [button for button in app.button if str(button.key).endswith(".why")]
    (place,) = [name for name in app.session_state if name.endswith(".exchange")]
    rows = np.flatnonzero(film.task == 0)[:3]
    app.session_state[place] = Exchange(Selection(tuple(rows.tolist()), 1))
    app.run()
    (why,) = [button for button in app.button if str(button.key).endswith(".why")]
    assert "Why these 3 images" in why.label
    why.click().run()
    assert not app.exception
    chosen = app.query_params["images"]
    assert "".join(chosen).split(",") == [str(index) for index in sorted(film.index[rows])]
    assert "".join(app.query_params["task"]) == film.tasks[0]


def test_values_of_a_new_film():
    assert frame_values(0.0, 1.0, 5, False) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert frame_values(1, 4, 11, True) == [1, 2, 3, 4]
    assert frame_values(2.0, 2.0, 11, False) == [2.0]


@pytest.mark.parametrize(("method", "offered"), [("task_arithmetic", True), ("weight_average", False)])
def test_experts_join_in_a_film_of_methods_that_take_their_weights(workspace, open_app, method, offered):
    row = workspace.finished("mine", merge={"method": method})
    app = open_app("representations", run=row.id)
    app.button_group(key="representations.view").set_value("film").run()
    assert not app.exception
    assert ("Experts merged" in app.selectbox(key="representations.film.place").options) == offered


def test_tasks_without_an_accuracy_are_left_out_of_the_curve(film, recipe):
    """A task whose answers are numbers has None in every frame."""
    first, *others = [task["name"] for task in film.document["tasks"] if task["domain"] == "in"]
    table = film.document["accuracy"]["merged"]

    def packed(unknown, **changes):
        own = {task: [None] * 21 if task in unknown else values for task, values in table.items()}
        document = film.document | {"accuracy": film.document["accuracy"] | {"merged": own}} | changes
        packet = film_packet(replace(film, document=document), "key", ("merged",), recipe)
        (length,) = struct.unpack("<I", packet[:4])
        return json.loads(packet[4 : 4 + length])["film"]["panels"][0]

    panel = packed([first])
    assert panel["accuracy"][film.tasks.index(first)] == [None] * 21
    assert panel["curve"] == [pytest.approx(np.mean([table[task][n] for task in others]), abs=1e-3) for n in range(21)]
    assert packed([first, *others])["curve"] == [None] * 21
    outside = [task | {"domain": "out"} for task in film.document["tasks"]]
    assert packed([], tasks=outside)["curve"] == [None] * 21


def test_a_film_is_asked_for_over_seeds_and_in_a_chosen_map(workspace, open_app):
    workspace.example()
    app = open_app("representations", run="made")
    app.button_group(key="representations.view").set_value("film").run()
    app.selectbox(key="representations.film.place").select("seed").run()
    app.selectbox(key="representations.film.map").select("tsne").run()
    assert not app.exception
    assert "how far points move there is chance" in " ".join(text.value for text in app.caption)
    app.button(key="representations.film.make.compute").click().run()
    (row,) = workspace.store.runs.list(kinds=("film",))
    assert row.name == "Film over Training seed, t-SNE"
    assert row.request["place"] == "seed"
    assert row.request["values"] == [0, 1, 2]
    assert row.request["map"] == "tsne"


def test_films_of_one_parameter_in_two_maps_stand_side_by_side(workspace):
    row = workspace.finished("mine")
    run = open_run(row.id)
    for plane in ("pca", "tsne"):
        asked = FILM.ask(run.report.recipe, place=PLACE, values=[0.1, 0.2], map=plane)
        film = workspace.store.runs.submit("film", asked.model_dump(mode="json"), owner="test")
        left = hashlib.sha256(plane.encode()).hexdigest()
        with workspace.store.create(left, step="film"):
            pass
        workspace.store.runs.finish(film.id, left)
    assert {entry.name for entry in films_of(run)} == {PLACE, f"{PLACE}:tsne"}
    assert len({entry.folder for entry in films_of(run)}) == 2
    assert [entry.shown for entry in films_of(run)][1].endswith(", t-SNE")


def test_films_of_one_parameter_over_other_values_stand_side_by_side(workspace):
    row = workspace.finished("mine")
    run = open_run(row.id)
    for number, values in enumerate(([0.1, 0.2], [0, 0.5, 1])):
        asked = FILM.ask(run.report.recipe, place=PLACE, values=values)
        film = workspace.store.runs.submit("film", asked.model_dump(mode="json"), owner="test")
        left = hashlib.sha256(f"values {number}".encode()).hexdigest()
        with workspace.store.create(left, step="film") as folder:
            (folder / "film.json").write_text(json.dumps({"format": 1, "texts": [f"{value:g}" for value in values]}))
        workspace.store.runs.finish(film.id, left)
    newest, older = films_of(run)
    assert (newest.name, newest.frames) == (PLACE, "")
    assert older.name == f"{PLACE}:0.1 to 0.2 in 2 frames"
    assert older.shown.endswith(", 0.1 to 0.2 in 2 frames")
    assert newest.folder != older.folder


@pytest.fixture
def played(workspace, open_app, tmp_path):
    """A run of one's own with a film, shown in the Lab."""
    workspace.example()
    row = workspace.submitted("Mine", read_report(EXAMPLE).recipe)
    folder = tmp_path / "mine"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("views"))
    workspace.store.runs.finish(row.id, str(folder))
    app = open_app(run=row.id)
    assert app.button_group(key="film").value == PLACE
    return app, row, folder


def test_a_film_whose_run_is_deleted_while_it_plays_goes_on_until_another_run_is_shown(played, workspace):
    app, row, folder = played
    workspace.store.runs.delete(row.id)
    shutil.rmtree(folder)
    app.run()
    assert not app.exception
    assert app.query_params["run"] == "made", "another run is shown"
    with pytest.raises(KeyError):
        app.button_group(key="film")


def test_a_gesture_on_a_film_that_is_gone_says_so(played):
    _, row, folder = played
    entries = films_of(open_run(row.id))
    shutil.rmtree(folder)
    st.cache_resource.clear()

    def gesture(run, entries):
        from pages.features.film_view import _view

        _view(run, entries, "test")

    view = RunView(row.id, "Mine", folder, read_report(EXAMPLE), str(folder), False)
    gone = AppTest.from_function(gesture, args=(view, entries)).run()
    assert not gone.exception
    assert "cannot be read" in gone.error[0].value
    assert "Compute it again" in gone.error[0].value
    assert films_of(view) == []
