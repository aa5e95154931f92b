"""Pages where people log in: whose runs they change, and what they see without a role; nothing of it on a laptop."""

import pytest

from engine.store.desk import Desk
from engine.store.people import Person, Settings
from pages.forms import recipe as forms
from pages.shared.uploads import uploads
from tests.image_files import write_zip
from tests.pages.test_bring import brought
from tests.pages.test_lab import problems, texts
from tests.pages.test_runs import choose

ME = "test@example.com"  # whom Streamlit's own test runner logs in


@pytest.fixture
def logged_in(monkeypatch):
    monkeypatch.setenv("MERGELENS_LOGIN", "headers")
    monkeypatch.setenv("MERGELENS_ROLES", "member=*")


def submitted(workspace, person):
    request = {"recipe": workspace.recipe().model_dump(mode="json")}
    return workspace.store.runs.submit("run", request, name=f"Of {person}", person=person, requested_by="page")


def test_runs_of_others_are_not_cancelled(workspace, open_app, logged_in):
    mine, other = submitted(workspace, ME), submitted(workspace, "ben@example.com")
    app = open_app("runs")
    assert not app.exception
    assert app.button(key=f"runs.cancel.{other.id}").disabled
    assert not app.button(key=f"runs.cancel.{mine.id}").disabled
    app.button(key=f"runs.cancel.{mine.id}").click().run()
    states = [workspace.store.runs.get(row.id).state for row in (mine, other)]
    assert states == ["cancelled", "queued"]


def test_labels_of_others_are_read(workspace, open_app, logged_in):
    mine, other = submitted(workspace, ME), submitted(workspace, "ben@example.com")
    for row in (mine, other):
        workspace.store.runs.request_cancel(row.id)
    for row, fixed in ((mine, False), (other, True)):
        app = choose(open_app("runs"), row.name)
        widgets = [app.text_input(key=f"runs.name.{row.id}"), app.text_area(key=f"runs.notes.{row.id}")]
        widgets += [app.multiselect(key=f"runs.tags.{row.id}"), app.button(key=f"runs.save.{row.id}")]
        widgets += [app.button(key="runs.delete"), app.button(key="runs.resume")]
        assert [widget.disabled for widget in widgets] == [fixed] * len(widgets)
        assert ("belongs to ben@example.com" in texts(app).replace("\\", "")) == fixed


def test_people_see_who_they_are(workspace, open_app, logged_in):
    workspace.example()
    assert f"{ME} · member" in [caption.value.replace("\\", "") for caption in open_app().sidebar.caption]


def test_a_viewer_is_told_why_nothing_starts(workspace, open_app, logged_in, monkeypatch):
    monkeypatch.setenv("MERGELENS_ROLES", "viewer=*")
    workspace.example()
    app = open_app("methods")
    app.button(key="methods.missing").click().run()
    assert not app.exception
    assert "start nothing" in " ".join(toast.value for toast in app.toast)
    assert workspace.store.runs.list() == []


def test_who_may_start_nothing_now_is_told_so_and_may_try_settings(workspace, open_app, logged_in, monkeypatch):
    """Pages ask for some things by themselves, such as the check of a recipe."""
    monkeypatch.setitem(forms.FIRST_RECIPE, "zoo", str(workspace.zoo))
    for setting, reason in (
        ("MERGELENS_ROLES", "start nothing"),
        ("MERGELENS_QUOTA_RUNS", "the most a person may have"),
    ):
        monkeypatch.setenv(setting, {"MERGELENS_ROLES": "viewer=*", "MERGELENS_QUOTA_RUNS": "0"}[setting])
        app = open_app()
        assert not app.exception
        assert not problems(app)
        app.button(key="form.run").click().run()
        assert not app.exception
        assert reason in " ".join(toast.value for toast in app.toast)
        monkeypatch.setenv("MERGELENS_ROLES", "member=*")
    assert workspace.store.runs.list() == []


def test_who_has_no_role_sees_no_page(workspace, open_app, logged_in, monkeypatch):
    workspace.example()
    monkeypatch.setenv("MERGELENS_ROLES", "admin=it member=lab")
    app = open_app()
    assert "Your account has no role here" in " ".join(problems(app))
    assert not app.metric


def test_who_cannot_be_told_sees_no_page(workspace, open_app, logged_in, monkeypatch):
    workspace.example()
    monkeypatch.setenv("MERGELENS_ID_CLAIM", "sub")
    app = open_app()
    assert "has no 'sub'" in " ".join(problems(app)).replace("\\", "")
    assert not app.metric


def test_files_that_others_brought_are_theirs_alone(workspace, open_app, logged_in, monkeypatch, tmp_path):
    """The address of somebody's visit, or a path in it, gives others neither its files nor its folder."""
    monkeypatch.setenv("MERGELENS_ROOTS", str(tmp_path / "roots"))
    (tmp_path / "roots").mkdir()
    archive = write_zip(tmp_path / "shapes.zip")
    theirs = brought(archive, "shapes.zip", "ben@example.com")
    app = open_app("bring", files=theirs)
    assert not app.exception
    mine = app.session_state["files"]
    assert mine != theirs
    assert app.query_params["files"] == mine
    assert open_app("bring", files=mine).session_state["files"] == mine
    zoos = workspace.store.root / "zoos"
    zoos.mkdir()
    archive.rename(zoos / "shapes.zip")
    for place in (uploads().folder(theirs) / "shapes.zip", uploads().folder(theirs), workspace.store.root):
        assert "outside the folders that this app may read" in added(open_app("bring"), place)
    assert added(open_app("bring"), zoos / "shapes.zip") == ""
    monkeypatch.setenv("MERGELENS_ROOTS", str(tmp_path))
    assert "outside the folders that this app may read" in added(open_app("bring"), uploads().folder(theirs))


def added(app, place):
    """Add data by a place on the server; returns what speaks against it."""
    app.session_state["bring.step"] = "images"
    app.session_state["bring.w.place.images"] = "server"
    app.session_state["bring.w.images.place"] = str(place)
    app.run().button(key="bring.images.add").click().run()
    assert not app.exception
    assert bool(problems(app)) != ("Remove" in [button.label for button in app.button])
    return " ".join(problems(app))


def test_what_is_shown_of_a_request_names_no_folder_of_a_visit(workspace, open_app, logged_in):
    request = {"base": str(workspace.store.root / "uploads" / ("ab" * 12) / "a.pt"), "tray": "ab" * 12}
    row = workspace.store.runs.submit("import", request, name="Theirs", person="ben@example.com")
    workspace.store.runs.request_cancel(row.id)
    shown = choose(open_app("runs"), "Theirs").json[0].value
    assert "ab" * 12 not in shown
    assert "a.pt" in shown


def test_a_viewer_brings_no_files(workspace, open_app, logged_in, monkeypatch):
    monkeypatch.setenv("MERGELENS_ROLES", "viewer=*")
    app = open_app("bring")
    assert not app.exception
    assert "start nothing" in " ".join(info.value for info in app.info)
    assert "files" not in app.query_params
    app.segmented_control(key="bring.w.place.models").set_value("hub").run()
    app.text_input(key="bring.w.hub.models").set_value("a/b").run()
    app.button(key="bring.hub.models.go").click().run()
    assert "start nothing" in " ".join(toast.value for toast in app.toast)
    assert not (workspace.store.root / "uploads").exists()


def test_an_admin_sees_who_deleted_what(workspace, open_app, logged_in, monkeypatch):
    row = submitted(workspace, "ben@example.com")
    workspace.store.runs.request_cancel(row.id)
    Desk(workspace.store, Person("ben@example.com", "Ben", "member"), Settings()).delete(row.id)
    monkeypatch.setenv("MERGELENS_ROLES", "admin=*")
    app = open_app("runs")
    app.session_state["runs.storage"] = True
    app.run()
    table = next(frame.value for frame in app.dataframe if "Who" in frame.value)
    assert table[["Who", "What", "Id"]].values.tolist() == [["ben@example.com", "deleted", row.id]]


def test_on_a_laptop_nothing_of_it_shows(workspace, open_app):
    run = submitted(workspace, "")
    app = open_app("runs")
    assert not app.button(key=f"runs.cancel.{run.id}").disabled
    assert "member" not in texts(app)
