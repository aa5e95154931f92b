"""The documents: links lead somewhere, commands can be given, numbers are those of the shipped runs."""

import re
import shlex

import pytest
import typer
from typer.core import TyperGroup

from engine.__main__ import app
from engine.experiments import read_experiment, read_result
from engine.experiments.claims import shipped_path
from engine.manifest import ASSETS
from engine.report import read_report
from engine.rounding import rounded
from tests.project.test_imports import ROOT

DOCUMENTS = [ROOT / "README.md", ROOT / "DESIGN.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(#[^)\s]*)?\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"python -m engine((?: [^`#\n]*)?)")
every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def anchors(text):
    """The headings of a document as its links name them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_document
def test_links_lead_somewhere(document):
    for file, anchor in LINK.findall(CODE.sub("", document.read_text("utf-8"))):
        target = (document.parent / file) if file else document
        assert target.exists(), f"{document.name} links to {file}, which is not there"
        assert not anchor or anchor in anchors(target.read_text("utf-8")), f"{file} has no heading {anchor}"


def commands():
    """Every call of the engine that the documents show, lines that go on joined."""
    for document in DOCUMENTS:
        text = document.read_text("utf-8").replace("\\\n", " ")
        for found in COMMAND.findall(text):
            yield pytest.param(found.strip(), id=f"{document.stem}: {found.strip()}"[:80])


@pytest.mark.parametrize("command", list(commands()))
def test_commands_can_be_given(command):
    """A command's words are read as the shell and the program read them, and it is not carried out."""
    words, found = shlex.split(command), typer.main.get_command(app)
    while words and isinstance(found, TyperGroup):
        context = found.make_context("engine", [], resilient_parsing=True)
        asked = words[0]
        _, found, words = found.resolve_command(context, words)
        assert found is not None, f"there is no command {asked}"
    if words:  # a command that is only named needs no arguments
        found.make_context(found.name, list(words))


def test_targets_of_make_are_there():
    text = "".join(document.read_text("utf-8") for document in DOCUMENTS)
    named = set(re.findall(r"^ {4}make (\w+)|`make (\w+)`", text, re.MULTILINE))
    there = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert {first or second for first, second in named} <= there


def test_a_wrong_command_is_told():
    with pytest.raises(Exception, match="No such option"):
        test_commands_can_be_given("run recipe.yaml --nowhere x")
    with pytest.raises(AssertionError, match="no command fatch"):
        test_commands_can_be_given("zoo fatch clip")


def test_every_command_is_described():
    text = "".join((ROOT / "docs" / name).read_text("utf-8") for name in ("commands.md", "bring.md"))
    for name, command in typer.main.get_command(app).commands.items():
        for each in command.commands if isinstance(command, TyperGroup) else [""]:
            call = f"{name} {each}".strip()
            assert re.search(rf"\b{call}\b", text), f"docs/commands.md does not name `{call}`"


def test_the_accuracies_are_those_of_the_examples():
    """Rows of the bundled zoo's table whose runs come along."""
    table = (ROOT / "docs" / "methods.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| ([^|]+) \| ([\d.]+ \| [\d.]+ \| [\d.]+) \|$", table, re.MULTILINE))
    known = {
        "pretrained": ("task-arithmetic", "pretrained"),
        "Task Arithmetic, λ 0.3": ("task-arithmetic", "merged"),
        "TIES, sum, λ 0.3": ("ties", "merged"),
        "Task Arithmetic with LwPTV, η 0.7": ("task-arithmetic-lwptv", "merged"),
        "multitask (trained jointly)": ("task-arithmetic", "multitask"),
    }
    for row, (example, state) in known.items():
        found = read_report(ASSETS / "examples" / example).average[state]
        assert rows[row] == " | ".join(rounded(value, 1) for value in (found.within, found.out, found.h_score)), row


def test_the_readme_is_short_and_quotes_the_tables():
    readme, *tables = (ROOT / name for name in ("README.md", "docs/methods.md", "docs/zoo.md"))
    lines = readme.read_text("utf-8").splitlines()
    assert len(lines) <= 150
    numbers = re.findall(r"(\d\d\.\d) %", " ".join(lines))
    assert len(numbers) >= 5
    quoted = "".join(table.read_text("utf-8") for table in tables)
    assert set(numbers) <= set(re.findall(r"\d\d\.\d", quoted))


def test_the_readme_quotes_what_the_headlines_were_judged_by():
    text = (ROOT / "README.md").read_text("utf-8")
    quoted = text[text.index("are repeated here with controls") : text.index("and a second set of experts")]
    headlines = {"prob-surgery-accuracy": "on_ta", "lwptv-accuracy": "ta", "interv-accuracy": "ada"}
    for name, check in headlines.items():
        spec = read_experiment(name)
        (place,) = (number for number, found in enumerate(spec.checks) if found.name == check)
        finding = read_result(shipped_path(spec)).findings[place]
        for number in (finding.difference, finding.low, finding.high):
            assert re.search(rf"(?<![\d.]){re.escape(f'{number:.3g}')}(?![\d])", quoted), (name, number)
        assert (finding.verdict == "holds here") == (name == "interv-accuracy"), "which is told of it"
