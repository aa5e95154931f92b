"""Text that leaves the app for programs that act on what they are given: spreadsheets, LaTeX, terminals.

Titles and names come from zoos and people. A cell that begins with `=` is a formula to a spreadsheet, and an escape
sequence is a command to a terminal.
"""

from __future__ import annotations

from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
SPACES = "\u00a0\u2009\u202f"  # that hold numbers and their units together
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "λ": r"$\lambda$",
    "η": r"$\eta$",
    "τ": r"$\tau$",
    "−": "$-$",
    "–": "--",
    "·": r"$\cdot$",
    "±": r"$\pm$",
    "×": r"$\times$",
    **{c: "\\" + c for c in "&%$#_{}"},
}


def csv_cell(value: Any) -> Any:
    """Return a cell that spreadsheets show and never compute; numbers, also those written as text, stay as they are."""
    if not isinstance(value, str) or not value.lstrip(" ").startswith(FORMULA) or _is_number(value):
        return value
    return f"'{value}"


def csv_table(table: Any) -> str:
    """Render a pandas table as CSV whose cells and headings spreadsheets never compute."""
    return table.map(csv_cell).rename(columns=csv_cell).to_csv(index=False)


def latex(text: str) -> str:
    """Return text that LaTeX prints as it is, in one line."""
    return "".join(LATEX.get(character, character) for character in " ".join(text.split()))


def terminal(text: str) -> str:
    """Return text in one line that a terminal shows and never obeys: what cannot be seen is written as an escape."""
    return "".join(c if c.isprintable() or c in SPACES else c.encode("unicode_escape").decode("ascii") for c in text)


def terminal_lines(text: str) -> str:
    """Do the same for text of several lines, which stay lines."""
    return "\n".join(map(terminal, text.split("\n")))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
