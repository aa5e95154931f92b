"""Every control of every page says in the field's terms what it does, and those of views are in the address."""

import ast
from pathlib import Path

import pytest

from engine.catalog import CALIBRATORS, MERGE_METHODS, TRANSFORMS
from pages.forms.params import hint_of

FOLDER = Path(__file__).resolve().parents[2] / "pages"
PAGES = sorted(FOLDER.rglob("*.py"))
CONTROLS = {
    "slider",
    "selectbox",
    "segmented_control",
    "pills",
    "toggle",
    "number_input",
    "text_input",
    "multiselect",
    "radio",
    "select_slider",
    "text_area",
    "checkbox",
    "switcher",
    "one_of",
}
ROWS = [*MERGE_METHODS.values(), *TRANSFORMS.values(), *CALIBRATORS.values()]
WORDS = 4  # fewer say nothing
BRING = {"bring", *(f"sections/bring_{part}" for part in ("files", "data", "classes", "check"))}
ASKED_FOR = {
    *BRING,
    "sections/runs_details",
    "sections/runs_storage",
    "features/film_maker",
    "sections/zoo_copy",
    "sections/zoo_train",
}  # and all forms
NO_VIEW = {
    "Log",
    "The camera of figures saves",
    "Your prediction",
    "Zoo",
    "Quick form: fewer samples, shorter training, one seed",
}


def name_of(path):
    return path.relative_to(FOLDER).with_suffix("").as_posix()


def is_view(path):
    """Tell whether a page's controls change what is seen, not what is asked for."""
    return name_of(path) not in ASKED_FOR and not name_of(path).startswith("forms/")


def controls(path):
    """Calls that draw a control, with the keywords they give."""
    for node in ast.walk(ast.parse(path.read_text())):
        called = node.func if isinstance(node, ast.Call) else None
        if getattr(called, "attr", getattr(called, "id", None)) in CONTROLS:
            yield node, {word.arg: word.value for word in node.keywords}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_control_has_a_help_text(path):
    for node, given in controls(path):
        place, text = f"{path.name}:{node.lineno}", given.get("help")
        assert text is not None, f"{place} has no help"
        if isinstance(text, ast.Constant):
            assert len(text.value.split()) >= WORDS, f"{place} says only: {text.value}"


@pytest.mark.parametrize("path", [path for path in PAGES if is_view(path)], ids=name_of)
def test_every_control_of_a_view_is_in_the_address(path):
    for node, given in controls(path):
        label = node.args[0].value if isinstance(node.args[0], ast.Constant) else ast.unparse(node.args[0])
        own = given.keys() & {"on_change", "on_choice"}  # its callback writes the address
        bound = "bind" in given or getattr(node.func, "id", "") == "one_of"
        assert bound or own or label in NO_VIEW, f"{path.name}:{node.lineno} {label}"


@pytest.mark.parametrize("path", [path for path in PAGES if path.stem != "one_of"], ids=name_of)
def test_a_choice_in_the_address_that_cannot_be_empty_is_one_of(path):
    for node, given in controls(path):
        assert not {"bind", "required"} <= given.keys(), f"{path.name}:{node.lineno}: an empty parameter would be None"


@pytest.mark.parametrize(
    "row", [*MERGE_METHODS.values(), *TRANSFORMS.values(), *CALIBRATORS.values()], ids=lambda row: row.name
)
def test_parameters_of_methods_are_explained_with_their_paper(row):
    for field in row.params.model_fields.values():
        text = hint_of(row, field)
        assert not row.url.startswith("https://") or f"]({row.url})" in text
