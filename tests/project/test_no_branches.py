"""Nobody outside the package of modalities asks which kind of data a zoo is of."""

import ast
from pathlib import Path

import pytest

from engine.zoo.modalities import MODALITIES, Modality

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine/zoo/modalities/",)
OWN = ("engine/zoo/texts/", "engine/zoo/images/", "engine/zoo/importing/texts/", "engine/zoo/mini_text/")  # one kind's
NAMES = set(MODALITIES)
CLASSES = {type(modality).__name__ for modality in MODALITIES.values()}
PREPARATIONS = {modality.preparation.__name__ for modality in MODALITIES.values()}
EXCEPTIONS = {
    "engine/manifest.py": "the form of zoo.yaml: which kinds there are, and which of its fields each has",
    "engine/pipeline/zoos/new.py": "'text' is there a way to build heads",
    "engine/zoo/importing/architecture.py": "facts about models are numbers, words or a Preprocess; it writes them",
}


def findings(source: str) -> list[str]:
    """Return the places where a program asks for the kind of data."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            parts = [
                part for side in sides for part in (side.elts if isinstance(side, ast.Tuple | ast.Set) else [side])
            ]
            named = any(isinstance(part, ast.Constant) and part.value in NAMES for part in parts)
            if named or any(_name(part) in {"USUAL", "tokenisation", *CLASSES} for part in parts):
                found.append(node)
        elif isinstance(node, ast.Subscript) and _name(node.value) == "MODALITIES":
            found += [node] if isinstance(node.slice, ast.Constant) else []
        elif isinstance(node, ast.Dict):
            keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
            found += [node] if keys == NAMES else []
        elif isinstance(node, ast.Match):
            cases = [case.pattern.value for case in node.cases if isinstance(case.pattern, ast.MatchValue)]
            found += [node] if any(isinstance(case, ast.Constant) and case.value in NAMES for case in cases) else []
        elif isinstance(node, ast.Call) and _name(node.func) == "isinstance":
            names = {_name(part) for part in ast.walk(node.args[1])}
            found += [node] if names & (CLASSES | PREPARATIONS) else []
    return [f"{node.lineno}: {ast.unparse(node)[:100]}" for node in found]


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def sources() -> list[Path]:
    files = [path for folder in ("engine", "pages") for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in files if not str(path.relative_to(ROOT)).startswith((*PACKAGES, *OWN))]


def test_no_program_asks_for_the_kind_of_data():
    wrong = {}
    for path in sources():
        name = str(path.relative_to(ROOT))
        found = findings(path.read_text("utf-8"))
        if found and name not in EXCEPTIONS:
            wrong[name] = found
    assert not wrong, "\n".join(f"{name}:{line}" for name, lines in wrong.items() for line in lines)


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_every_exception_is_needed(name):
    assert findings((ROOT / name).read_text("utf-8"))


@pytest.mark.parametrize(
    "line",
    [
        "if zoo.modality.name == 'text': pass",
        "a = 1 if kind != 'image' else 2",
        "if kind_of(run) is not USUAL: pass",
        "kind = MODALITIES['text']",
        "words = {'image': 1, 'text': 2}",
        "if isinstance(preparation, (Preprocess, Tokenisation)): pass",
        "if manifest.backbone.tokenisation is not None: pass",
        "if kind in ('image', 'sound'): pass",
        "match kind:\n    case 'text': pass",
    ],
)
def test_what_is_looked_for_is_found(line):
    assert findings(line)


def test_every_modality_declares_all_that_the_protocol_names():
    names = {name for name in (*vars(Modality), *Modality.__annotations__) if not name.startswith("_")}
    for modality in MODALITIES.values():
        assert not [name for name in names if not hasattr(modality, name)]
