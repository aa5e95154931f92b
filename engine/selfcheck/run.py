"""Going through folders of references and saying for each how far the engine is from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..errors import EngineError
from .calibrators import CHECKS as CALIBRATORS
from .measure import Check, Measured, measure
from .merging import CHECKS as MERGING
from .premerging import CHECKS as PREMERGING
from .reference import PRECISIONS, Reference, open_references

Verdict = Literal["reproduced", "missed", "listed", "unknown"]
CHECKS: dict[str, Mapping[str, Check]] = {"merging": MERGING, "premerging": PREMERGING, "calibrators": CALIBRATORS}
# References that no part of the engine stands for, and why.
NOT_REPRODUCED: dict[str, str] = {}


@dataclass(frozen=True)
class Outcome:
    """Outcome of one reference, with the measured errors by precision."""

    group: str
    name: str
    verdict: Verdict
    measured: Mapping[str, Measured] = field(default_factory=dict)
    reason: str = ""


def check_folder(folder: Path) -> Iterator[Outcome]:
    """Compare the engine with every reference of a folder, in float64 and float32.

    Args:
        folder: with ``index.json``, or with a JSON file for each reference, or with the subfolders ``merging``,
            ``premerging`` and ``calibrators`` of these forms.

    Returns:
        Outcomes as they are found. A reference that cannot be read, or where the engine fails, is missed, with the
        reason.

    Raises:
        ReferenceFolderError: the folder is not one of references.
    """
    references = open_references(folder)
    return (check(reference, name) for reference in references for name in reference.names)


def check(reference: Reference, name: str) -> Outcome:
    """Compare the engine with one reference."""
    if name in NOT_REPRODUCED:
        return Outcome(reference.group, name, "listed", reason=NOT_REPRODUCED[name])
    known = CHECKS[reference.group].get(name)
    if known is None:
        return Outcome(reference.group, name, "unknown", reason="no part of the engine is known to stand for it")
    measured: dict[str, Measured] = {}
    note = ""
    for precision in PRECISIONS:
        try:
            measured[precision], note = compare(reference, name, precision)
        except EngineError as error:
            return Outcome(reference.group, name, "missed", measured, str(error))
        except Exception as error:  # whatever comes of content that nobody expected
            reason = f"its content is not as expected ({type(error).__name__}: {error})"
            return Outcome(reference.group, name, "missed", measured, reason)
    missed = [f"{precision}: {found.where}" for precision, found in measured.items() if not found.within]
    return Outcome(reference.group, name, "missed" if missed else "reproduced", measured, "; ".join(missed) or note)


def compare(reference: Reference, name: str, precision: str) -> tuple[Measured, str]:
    """Return the engine's errors against one reference in one precision, and a note on what was not compared."""
    found = CHECKS[reference.group][name](reference, name, precision)
    return measure(found.got, found.want, reference.tolerance(name, found.precision or precision)), found.note
