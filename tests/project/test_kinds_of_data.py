"""Rooms that compute and draw know no kind of data."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("merging", "calibration", "analysis", "figures")  # of the engine: none asks which kind of data a zoo has
NAMES = re.compile(r"modalit|(is|only|has)_(text|image)s?$|^(Text|Image)Modality$", re.IGNORECASE)
KINDS = {"text", "texts", "image", "images"}


def questions(source: str) -> list[str]:
    """Places of a source that ask for the kind of data: names of modalities, comparisons with their names, imports."""
    found = []
    for node in ast.walk(ast.parse(source)):
        named = [getattr(node, part, None) for part in ("id", "attr", "arg", "name", "module")]
        parts = [part for name in named if isinstance(name, str) for part in name.split(".")]
        compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        compared += [node.value] if isinstance(node, ast.MatchValue) else []
        compared += [inner for one in compared for inner in getattr(one, "elts", ())]
        asked = any(NAMES.search(part) for part in parts)
        asked |= any(isinstance(one, ast.Constant) and one.value in KINDS for one in compared)
        asked |= isinstance(node, ast.ImportFrom) and bool({"texts", "images"} & set(parts) and "zoo" in parts)
        if asked:
            found.append(f"{getattr(node, 'lineno', '?')}: {ast.unparse(node)[:80]}")
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_that_computes_or_draws_asks_for_no_kind_of_data(room):
    files = sorted((ROOT / "engine" / room).rglob("*.py"))
    assert files
    assert [f"{path.name}:{one}" for path in files for one in questions(path.read_text())] == []


@pytest.mark.parametrize(
    "source",
    [
        "if zoo.modality == name: pass",
        "from ..zoo.modalities import modality_of",
        "from ..zoo.texts import bert",
        "x = 1 if kind == 'text' else 2",
        "x = kind in ('texts', 'images')",
        "match kind:\n    case 'image': pass",
        "def f(modality): pass",
        "f(is_text=True)",
    ],
)
def test_such_a_question_is_found(source):
    assert questions(source)


@pytest.mark.parametrize("source", ["images = batch['images']", "text = str(x)", "from ..types import Context"])
def test_other_words_are_none(source):
    assert questions(source) == []
