"""The examples of DESIGN.md, taken out of it and put into a copy of the program."""

import ast
import re
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "DESIGN.md"
FENCE = re.compile(r"^```\w+ (?P<file>[^\s,]+)(?:, (?P<place>[^\n]+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
COPIED = ("app.py", "pyproject.toml", "engine", "pages", "tests")
FILLED = ("experiments", "lessons")  # folders of assets that examples go into; the others are linked


@dataclass(frozen=True)
class Block:
    """A piece of code with the place that it goes to."""

    file: str
    place: str  # '' for a whole file
    text: str


@dataclass(frozen=True)
class Example:
    """A section of the guide: the files that it says are touched, and its blocks."""

    title: str
    files: list[str]
    blocks: list[Block]


def examples() -> list[Example]:
    """Read every section of the guide that has blocks."""
    guide = GUIDE.read_text("utf-8").partition("\n## How to add\n")[2].partition("\n## Decisions\n")[0]
    found = []
    for section in guide.split("\n### ")[1:]:
        title, _, text = section.partition("\n")
        listed = re.search(r"^Files: (.+)\.$", text, re.MULTILINE)
        blocks = [Block(match["file"], match["place"] or "", match["text"]) for match in FENCE.finditer(text)]
        found.append(Example(title, re.findall(r"`([^`]+)`", listed[1]) if listed else [], blocks))
    return found


def copy_program(folder: Path) -> None:
    """Copy the program; what is large and only read is linked."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("reference"))
        else:
            shutil.copy(ROOT / name, folder / name)
    (folder / "tests" / "reference").symlink_to(ROOT / "tests" / "reference")
    (folder / "assets").mkdir()
    for path in (ROOT / "assets").iterdir():
        if path.name in FILLED:
            shutil.copytree(path, folder / "assets" / path.name)
        else:
            (folder / "assets" / path.name).symlink_to(path)


def put(block: Block, folder: Path) -> None:
    """Put a block where the guide says."""
    path = folder / block.file
    if not block.place:
        assert not path.exists(), f"{block.file} is there already; say where in it the block goes"
        path.write_text(block.text, "utf-8")
        return
    lines = path.read_text("utf-8").splitlines(keepends=True)
    at = _line(ast.parse("".join(lines)), block.place)
    entry = block.place.startswith("in ")
    text = textwrap.indent(block.text.rstrip(), "    ") + ",\n" if entry else block.text
    path.write_text("".join([*lines[:at], text, *lines[at:]]), "utf-8")


def _line(module: ast.Module, place: str) -> int:
    """Find the number of lines that stand before a block."""
    if place == "with the imports":
        imports = [node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom)]
        return imports[-1].end_lineno
    word, name = place.split()
    node = next(node for node in module.body if isinstance(node, ast.Assign) and node.targets[0].id == name)
    return {"before": node.lineno - 1, "in": node.end_lineno - 1}[word]
