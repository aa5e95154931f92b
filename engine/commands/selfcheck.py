"""The command that compares the engine with reference numbers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ReferenceFolderError
from ..shipped import references
from .printing import say

if TYPE_CHECKING:
    from ..selfcheck import Outcome

WORDS = {"reproduced": "ok", "missed": "MISSED", "listed": "listed", "unknown": "UNKNOWN"}


def selfcheck(
    reference: Annotated[
        Path | None, typer.Option(help="A folder of reference numbers; by default those that come with the program.")
    ] = None,
    allow_unknown: Annotated[bool, typer.Option(help="Do not fail for references nobody has heard of.")] = False,
) -> None:
    """Compare merge methods and calibrators with reference numbers, in float64 and float32.

    For each reference the largest error is printed with the share of its tolerance that it takes (above 1: a miss).
    """
    from ..selfcheck import check_folder

    folder = reference or references()
    if folder is None:
        raise ReferenceFolderError(
            "This installation has no reference numbers. They are a package of their own: run `pip install "
            "tests/reference` in a checkout, or give --reference DIR, that folder."
        )
    counts: dict[str, Counter[str]] = {}
    for outcome in check_folder(folder):
        if outcome.group not in counts:
            say(f"{outcome.group:42}{'float64: error (share)':>26}{'float32: error (share)':>26}")
            counts[outcome.group] = Counter()
        counts[outcome.group][outcome.verdict] += 1
        say(line(outcome))
    say("")
    for group, counted in counts.items():
        say(summary(group, counted))
    total = Counter[str]()
    for counted in counts.values():
        total += counted
    if total["missed"] or (total["unknown"] and not allow_unknown):
        raise typer.Exit(1)


def line(outcome: Outcome) -> str:
    """Return one reference: its errors, whether they are tolerated, and a reason."""
    cells = [
        f"{found.error:.1e} ({found.share:.2g})" if (found := outcome.measured.get(precision)) else "–"
        for precision in ("float64", "float32")
    ]
    text = f"  {outcome.name:40}{cells[0]:>26}{cells[1]:>26}  {WORDS[outcome.verdict]}"
    return f"{text}: {outcome.reason}" if outcome.reason else text


def summary(group: str, counted: Counter[str]) -> str:
    """Return how many references of a folder passed, failed and were left out."""
    parts = {
        "reproduced": "reproduced",
        "missed": "missed",
        "listed": "not reproducible (reasons above)",
        "unknown": "unknown",
    }
    return f"{group}: {counted.total()} references, " + ", ".join(
        f"{counted[verdict]} {words}" for verdict, words in parts.items()
    )
