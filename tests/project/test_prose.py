"""Docstrings say what a thing is or what a function does."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("benchmarks", "engine", "pages")
FILES = [ROOT / "app.py", *(path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
QUESTION = re.compile(r'^\s*"""\s*((?:What|Which|How|Whether|Whose|Where|When|Who|Why)(?:ever)?\b.*)', re.MULTILINE)
NOUN = re.compile(r"(The|An?|One|True|False|Names|Name of|Number|Shape|Sentences?)\b")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_no_docstring_begins_as_a_question():
    found = []
    for path in (*FILES, *TESTS):
        found += [f"{path.relative_to(ROOT)}: {text}" for text in QUESTION.findall(path.read_text("utf-8"))]
    assert not found, f"say what it does (Return …, Draw …) or what it is: {found}"


def test_docstrings_of_functions_begin_with_a_verb():
    found = []
    for path in FILES:
        nodes = (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, FUNCTIONS))
        public = ((node.name, ast.get_docstring(node) or "") for node in nodes if not node.name.startswith("_"))
        found += [f"{path.name}: {name}: {text}" for name, text in public if NOUN.match(text)]
    assert not found, f"say what it does (Return …, Draw …): {found}"
