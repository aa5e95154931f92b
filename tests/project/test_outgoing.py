"""Files that leave the app are shown by the programs that open them, and nothing in them is obeyed."""

from __future__ import annotations

import csv
import io

import pandas as pd
import pytest
from typer.testing import CliRunner

from engine.__main__ import app
from engine.outgoing import csv_cell, csv_table, latex, terminal, terminal_lines
from engine.store import Store


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
