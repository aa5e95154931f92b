"""Figures of every page: the camera of one place, and their numbers as a table to download beside them."""

import ast
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

PAGES = Path(__file__).parents[2] / "pages"
CHROME = PAGES / "shared" / "chrome.py"
TABLES = {"numbers_of", "_numbers"}


def calls(node):
    """Return the names of what is called within a part of a program."""
    found = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
    return {getattr(func, "id", getattr(func, "attr", "")) for func in found}


def functions(calling):
    """Return the functions of pages, and where they stand, that call another one."""
    for path in sorted(PAGES.rglob("*.py")):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if calling in text else ():
            if isinstance(node, ast.FunctionDef) and calling in calls(node):
                yield path, node


DRAWING = [pytest.param(path, node, id=f"{path.stem}.{node.name}") for path, node in functions("plot")]


def test_charts_are_drawn_in_one_place():
    others = [f"{path.name}: {node.name}" for path, node in functions("plotly_chart") if path != CHROME]
    assert not others, "draw it by chrome.figure or chrome.plot, whose camera saves it"
    assert "toImageButtonOptions" in CHROME.read_text("utf-8")


@pytest.mark.parametrize(("path", "node"), DRAWING)
def test_a_figure_has_its_table_beside_it(path, node):
    assert calls(node) & TABLES, f"{path.name}: {node.name} draws a figure without its numbers"


def test_figures_are_found():
    assert len(DRAWING) >= 6


def test_the_linked_view_saves_itself():
    from pages.features.scatter import VIEW_SOURCES

    assert "save.js" in VIEW_SOURCES


def test_beside_a_runs_numbers_lie_its_recipe_and_the_address_of_the_page(workspace, open_app):
    workspace.example()
    app = open_app("accuracy", run="made")
    app.session_state["accuracy.bars.numbers"] = True
    app.run()
    assert not app.exception
    (recipe,) = [part for part in app.get("download_button") if part.proto.label == "Recipe"]
    assert recipe.proto.help.startswith("The run's recipe as YAML")


def test_the_link_holds_everything_that_the_address_has(monkeypatch):
    from pages.shared import chrome

    state = {"run": ["task-arithmetic"], "panels": ["pretrained", "surgery"], "filmcolour": ["a b&c"]}

    class Params(dict):
        get_all = dict.__getitem__

    monkeypatch.setattr(chrome.st, "context", SimpleNamespace(url="http://host:8501/accuracy"))
    monkeypatch.setattr(chrome.st, "query_params", Params(state))
    link = urlsplit(chrome.page_link())
    assert (link.netloc, link.path) == ("host:8501", "/accuracy")
    assert parse_qs(link.query) == state
    monkeypatch.setattr(chrome.st, "context", SimpleNamespace(url=None))
    assert chrome.page_link() == ""


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "0 s"), (59.7, "1 min 0 s"), (119.6, "2 min 0 s"), (3599.7, "1.0 h"), (61, "1 min 1 s")],
)
def test_a_span_of_time_has_no_sixtieth_second(seconds, said):
    from pages.shared.chrome import duration

    assert duration(seconds) == said
