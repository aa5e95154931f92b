"""Every control of every page says in the field's terms what it does."""

import ast
from pathlib import Path

import pytest

from engine.catalog import CALIBRATORS, MERGE_METHODS, TRANSFORMS
from pages._params import hint_of

PAGES = sorted((Path(__file__).resolve().parents[2] / "pages").glob("*.py"))
CONTROLS = {"slider", "selectbox", "segmented_control", "pills", "toggle", "number_input", "text_input", "multiselect",
            "radio", "select_slider", "text_area", "checkbox"}  # fmt: skip
WORDS = 4  # fewer say nothing


def controls(path):
    """Calls that draw a control, with the help they give."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CONTROLS:
            yield node, next((word.value for word in node.keywords if word.arg == "help"), None)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_control_has_a_help_text(path):
    for node, text in controls(path):
        place = f"{path.name}:{node.lineno}"
        assert text is not None, f"{place} has no help"
        if isinstance(text, ast.Constant):
            assert len(text.value.split()) >= WORDS, f"{place} says only: {text.value}"


@pytest.mark.parametrize("row", [*MERGE_METHODS.values(), *TRANSFORMS.values(), *CALIBRATORS.values()], ids=str)
def test_parameters_of_methods_are_explained_with_their_paper(row):
    for name, field in row.params.model_fields.items():
        text = hint_of(row, field)
        assert field.description, f"{row.name}.{name} has no description"
        assert not row.url.startswith("https://") or f"]({row.url})" in text
