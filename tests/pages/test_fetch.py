"""A described zoo in the lab: what is missing is said, a folder is looked through, nothing is downloaded unasked."""

import pytest
import yaml

from engine.manifest import locate_zoo


@pytest.fixture
def described(workspace, tmp_path, monkeypatch):
    """A description of two sources, and the folders that may be read."""
    monkeypatch.setenv("MERGELENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MERGELENS_ROOTS", str(tmp_path))
    document = yaml.safe_load((workspace.zoo / "zoo.yaml").read_text())
    document["name"] = "away"
    document["title"] = "Experts elsewhere"
    document["backbone"] = {"architecture": "ViT-B-32", "weights": "hf:own/base", "quick_gelu": True}
    for expert in document["experts"]:
        expert["weights"] = f"hf:own/{expert['name']}"
    for task in document["tasks"]:
        task.pop("data")
    path = tmp_path / "away.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def open_on(open_app, workspace, zoo):
    workspace.example()
    app = open_app()
    app.session_state["form.w.text.card"] = True
    app.run()
    app.text_area(key="form.paste").set_value(yaml.safe_dump({"zoo": str(zoo)})).run()
    app.button(key="form.use").click().run()
    return app


def captions(app):
    return " ".join(element.value for element in app.caption).replace("\\", "")


def fetches(workspace):
    return workspace.store.runs.list(kinds=("fetch",))


def test_what_is_missing_is_said_and_downloaded_only_when_asked(workspace, open_app, described):
    app = open_on(open_app, workspace, described)
    assert not app.exception
    assert "Needs about 1.3 GB from the Hugging Face Hub; 0 of 3 are here." in captions(app)
    assert not fetches(workspace)
    app.button(key="fetch.go").click().run()
    (row,) = fetches(workspace)
    assert row.request == {"zoo": str(described), "places": [], "download": True, "images": True}
    app.button(key="fetch.cancel").click().run()
    assert workspace.store.runs.get(row.id).state == "cancelled"


def test_a_local_folder_is_looked_through_inside_the_roots(workspace, open_app, described, tmp_path):
    app = open_on(open_app, workspace, described)
    place = tmp_path / "files"
    for name in ("base", "digits", "signs"):
        (place / "own" / name).mkdir(parents=True)
        (place / "own" / name / "model.safetensors").write_bytes(b"x")
    (place / "own" / "base" / "model.safetensors").unlink()
    key = f"fetch.place.{described}"
    app.text_input(key=key).set_value(str(place)).run()
    assert "Not found there: base." in captions(app)
    (place / "own" / "base" / "model.safetensors").write_bytes(b"x")
    app.run()
    app.button(key="fetch.use").click().run()
    (row,) = fetches(workspace)
    assert row.request["places"] == [str(place)]
    assert row.request["download"] is False


def test_a_folder_outside_the_roots_is_refused(workspace, open_app, described):
    app = open_on(open_app, workspace, described)
    app.text_input(key=f"fetch.place.{described}").set_value("/etc").run()
    assert any("outside the folders" in error.value.replace("\\", "") for error in app.error)


def test_descriptions_are_listed_and_marked(workspace, open_app, monkeypatch, tmp_path):
    monkeypatch.setenv("MERGELENS_CACHE", str(tmp_path / "cache"))
    workspace.example()
    app = open_app()
    options = app.selectbox(key="form.w.zoo").options
    assert any("to be fetched" in option and "clip-vit-b32-ta8" in option for option in options)
    assert any("mini8" in option and "to be fetched" not in option for option in options)
    app.selectbox(key="form.w.zoo").set_value("clip-vit-b32-ta8").run()
    assert not app.exception
    assert "Needs about 3.4 GB and the images of 8 tasks" in captions(app)
    assert locate_zoo("clip-vit-b32-ta8").suffix == ".yaml"
