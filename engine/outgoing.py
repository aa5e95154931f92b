"""Text that leaves the app for programs that act on what they are given: spreadsheets, LaTeX, terminals.

Titles and names come from zoos and people. A cell that begins with `=` is a formula to a spreadsheet, and an escape
sequence is a command to a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "η": r"$\eta$",
    "θ": r"$\theta$",
    "λ": r"$\lambda$",
    "ξ": r"$\xi$",
    "σ": r"$\sigma$",
    "τ": r"$\tau$",
    "Σ": r"$\Sigma$",
    "²": "$^2$",
    "₀": "$_0$",
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


def latex_table(table: Any, caption: str) -> str:
    """Render a pandas table for LaTeX; numbers have four significant digits."""
    numeric = [all(isinstance(value, int | float) for value in table[name]) for name in table]
    rows = [[_number(value) for value in row] for row in table.itertuples(index=False)]
    return latex_tabular(list(map(str, table)), rows, "".join("r" if number else "l" for number in numeric), caption)


def latex_tabular(head: Sequence[str], rows: Iterable[Sequence[str]], columns: str, caption: str) -> str:
    """Return a LaTeX table that needs no package.

    Args:
        head: headings of the columns.
        rows: their cells.
        columns: how each is set: ``l``, ``r`` or ``c``.
        caption: below it.
    """
    lines = [" & ".join(map(latex, cells)) + r" \\" for cells in (head, *rows)]
    return "\n".join(
        [
            r"\begin{table}\centering",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\hline",
            lines[0],
            r"\hline",
            *lines[1:],
            r"\hline",
            r"\end{tabular}",
            rf"\caption{{{latex(caption)}}}",
            r"\end{table}",
            "",
        ]
    )


def _number(value: Any) -> str:
    """Return a cell's text: numbers with four significant digits, what is missing as a dash."""
    if value is None or value != value:  # NaN
        return "–"
    if not isinstance(value, float):
        return str(value)
    return (f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}").replace("-", "−")


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
