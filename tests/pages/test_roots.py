"""Requests of pages reach no zoo outside the folders that people may open."""

import shutil

import pytest

from engine.errors import ZooError
from engine.zoo.importing.roots import named_zoos, with_whole_paths
from pages.shared.service import ask
from tests.pages.test_lab import problems


@pytest.fixture
def outside(workspace, monkeypatch, tmp_path):
    """The made zoo as it lies outside the roots, and in them."""
    roots = tmp_path / "roots"
    shutil.copytree(workspace.zoo, roots / "zoo")
    monkeypatch.setenv("MERGELENS_ROOTS", str(roots))
    return str(workspace.zoo), str(roots / "zoo")


def nested(zoo):
    return [
        ("run", {"recipe": {"zoo": zoo}, "projection": None}),
        ("sweep", {"recipe": {"zoo": "mini8"}, "settings": [{"place": "zoo", "values": ["mini8", zoo]}]}),
        ("register", {"zoo": zoo, "task": "digits"}),
        ("finetune", {"zoo": "mini8", "teacher": {"zoo": f"{zoo}/../zoo"}}),
    ]


def test_requests_are_bound_to_the_roots(workspace, outside):
    away, here = outside
    for kind, request in nested(away):
        with pytest.raises(ZooError, match="lies outside the folders that this app may read"):
            ask(kind, request, "made")
    assert not workspace.store.runs.list()
    rows = [ask(kind, request, "made") for kind, request in nested(here)]
    assert len(rows) == 4
    assert list(named_zoos(rows[0].request)) == [here]


def test_a_known_zoo_may_be_used_wherever_it_lies(workspace, outside):
    workspace.store.zoos.add(workspace.zoo)
    assert ask("run", {"recipe": {"zoo": outside[0]}}, "made").state == "queued"


def test_a_forms_recipe_is_bound_to_the_roots(workspace, outside, open_app):
    workspace.finished("First")
    app = open_app()
    assert not app.exception
    assert "lies outside the folders that this app may read" in " ".join(problems(app))
    assert app.button(key="form.run").disabled


def test_zoos_that_are_named_from_here_are_named_by_whole_paths_wherever_they_stand(outside, monkeypatch, tmp_path):
    _, inside = outside
    monkeypatch.chdir(tmp_path / "roots")
    for kind, request in nested("zoo")[:3]:
        whole = with_whole_paths(request)
        assert inside in named_zoos(whole), kind
        assert not {"zoo", "./zoo"} & set(named_zoos(whole))
        assert "mini8" not in named_zoos(request) or "mini8" in named_zoos(whole)
    with pytest.raises(ZooError, match="no zoo 'elsewhere'"):
        with_whole_paths({"recipe": {"zoo": "elsewhere"}})
