"""Files that leave the app are shown by the programs that open them, and nothing in them is obeyed."""

from __future__ import annotations

import csv
import io
import os
import pty
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from typer.testing import CliRunner

from engine import commands
from engine.__main__ import app
from engine.commands.experiment import printed as printed_experiment
from engine.commands.printing import progress_line
from engine.commands.sweep import printed
from engine.experiments import experiment_names, read_experiment, read_result
from engine.experiments.spec import FOLDER
from engine.outgoing import csv_cell, csv_table, latex, latex_table, terminal, terminal_lines
from engine.store import Store
from engine.sweeps.table import SweepPoint, SweepTable
from engine.zoo.modalities import USUAL
from tests.pages.conftest import write_zoo


@pytest.mark.parametrize("text", ['=HYPERLINK("http://x")', "+1+cmd", "-2+3", "@SUM(A1)", "\t=1", "  =1", "\r=1"])
def test_formulas_are_text(text):
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["-0.5", "+3", "-inf", "plain", "a=b", "", -0.5, 3, None])
def test_other_cells_stay(value):
    assert csv_cell(value) is value


def test_a_table_is_neutral_in_cells_and_headings():
    table = pd.DataFrame({"task": ["=1+1", "digits"], "=evil": [-1.5, 2.0]})
    rows = list(csv.reader(io.StringIO(csv_table(table))))
    assert rows == [["task", "'=evil"], ["'=1+1", "-1.5"], ["digits", "2.0"]]


def test_latex_prints_what_is_meant():
    assert latex(r"a^b~c\d_{e}%") == r"a\textasciicircum{}b\textasciitilde{}c\textbackslash{}d\_\{e\}\%"


def test_a_table_for_latex_says_its_numbers_and_its_caption():
    table = pd.DataFrame({"task_1": ["a & b", None], "λ": [0.30000001, float("nan")], "n": [500, 12]})
    text = latex_table(table, "θ₀ + λτ, 50 % of them.")
    assert r"\begin{tabular}{lrr}" in text
    assert r"task\_1 & $\lambda$ & n \\" in text
    assert r"a \& b & 0.3 & 500 \\" in text
    assert r"-- & -- & 12 \\" in text
    assert r"\caption{$\theta$$_0$ + $\lambda$$\tau$, 50 \% of them.}" in text


@pytest.mark.parametrize(("value", "said"), [(-1.25, "−1.25"), (123456.7, "123,457"), (0.00012345, "0.0001234")])
def test_numbers_have_four_digits(value, said):
    assert said.replace("−", "$-$") in latex_table(pd.DataFrame({"x": [value]}), "")


def test_terminals_obey_nothing():
    assert terminal("a\x1b[2Jb\nc\r\x9b31m\u202ed é λ") == r"a\x1b[2Jb\nc\r\x9b31m\u202ed é λ"
    assert terminal_lines("a\x1b\nb") == "a\\x1b\nb"


def test_names_of_runs_are_listed_in_one_line():
    runs = Store().runs
    row = runs.submit("run", {}, name="good\nfinished 100 %\x1b[31m")
    runs.logs.append(row.id, "\x1b]0;title\x07")
    for command in (["runs", "list"], ["runs", "show", row.id]):
        printed = CliRunner().invoke(app, command).output
        assert r"good\nfinished 100 %\x1b[31m" in printed
        assert "\x1b" not in printed
        assert "\x07" not in printed


def test_commands_have_one_way_to_the_terminal():
    files = [path for path in Path(commands.__file__).parent.glob("*.py") if path.name != "printing.py"]
    direct = [path.name for path in files if re.search(r"\becho\b|\bprint\(|\bsecho\b|stdout", path.read_text("utf-8"))]
    assert files
    assert not direct


def shown_until(ours, theirs, end="[end]"):
    """All that was written to a terminal, which may hand it on in several pieces."""
    theirs.write(end)
    theirs.flush()
    shown = ""
    while not shown.endswith(end):
        shown += os.read(ours, 1000).decode()
    return shown.removesuffix(end)


def test_progress_on_a_terminal_obeys_nothing(monkeypatch):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal_of_somebody:
        monkeypatch.setattr(sys, "stderr", terminal_of_somebody)
        progress_line()(0.25, "Encoding\x1b]0;title\x07\nfinished")
        monkeypatch.undo()
        shown = shown_until(ours, terminal_of_somebody)
    os.close(ours)
    assert r"25 %  Encoding\x1b]0;title\x07\nfinished" in shown
    assert shown.count("\x1b") == 1  # the one that clears the line


def test_progress_on_a_terminal_says_how_long_it_still_takes(monkeypatch):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal_of_somebody:
        monkeypatch.setattr(sys, "stderr", terminal_of_somebody)
        moments = iter([0.0, 1.0, 20.0])
        monkeypatch.setattr("engine.commands.printing.time", SimpleNamespace(monotonic=lambda: next(moments)))
        show = progress_line()
        show(0.2, "Encoding")
        show(0.5, "Encoding")
        monkeypatch.undo()
        shown = shown_until(ours, terminal_of_somebody)
    os.close(ours)
    assert shown.endswith("50 %  Encoding, about 20 s left")
    assert shown.count("left") == 1


def test_a_sweeps_reasons_stay_in_their_line():
    points = [SweepPoint(number=0, values=(0.3,), title="λ 0.3", failed="no \x1b[2Jexpert\n0.3  99.9")]
    shown = printed(SweepTable(places=("merge.params.scaling",), titles=("λ",), points=points), USUAL)
    assert r"failed: no \x1b[2Jexpert\n0.3  99.9" in shown


def test_what_an_experiment_says_stays_in_its_lines():
    """Its file is somebody's, and so is the zoo that it is carried out on."""
    name = next(name for name in experiment_names() if (FOLDER / f"{name}.json").is_file())
    spec, result = read_experiment(name), read_result(FOLDER / f"{name}.json")
    forged = "\x1b[2J\nseen: it holds"
    lines = printed_experiment(
        spec.model_copy(update={"claim": f"A claim {forged}"}),
        result.model_copy(update={"reason": f"no reason {forged}", "zoo": f"zoo {forged}"}),
    ).splitlines()
    assert "\x1b" not in "".join(lines)
    assert not [line for line in lines if line.startswith("seen")]
    assert r"no reason \x1b[2J\nseen: it holds" in lines[-2]


def test_zoos_are_listed_as_they_are_called(tmp_path):
    folder = tmp_path / "zoo\x1b[31m\nmini8: ready"
    write_zoo(folder)
    Store().zoos.add(folder)
    listed = CliRunner().invoke(app, ["zoo", "list"]).output
    assert r"zoo\x1b[31m\nmini8: ready: imported" in listed
    assert "\x1b" not in listed
