"""Figures of every page: the camera of one place, and their numbers as a table to download beside them."""

import ast
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "pages"
CHROME = PAGES / "shared" / "chrome.py"
TABLES = {"numbers_of", "_numbers"}


def calls(node):
    """Return the names of what is called within a part of a program."""
    found = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
    return {getattr(func, "id", getattr(func, "attr", "")) for func in found}


def functions():
    for path in sorted(PAGES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                yield path, node


DRAWING = [
    pytest.param(path, node, id=f"{path.stem}.{node.name}") for path, node in functions() if "plot" in calls(node)
]


def test_charts_are_drawn_in_one_place():
    others = [
        f"{path.name}: {node.name}" for path, node in functions() if "plotly_chart" in calls(node) and path != CHROME
    ]
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
