"""The survey's overview of merging methods as a live table: what it says of each, and what runs measured here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from ..catalog import CALIBRATORS, MERGE_METHODS, TRANSFORMS
from ..catalog.survey import TABLE, SurveyRow
from .methods import BEHIND, WITH_APP, Method, Result

NOT_MEASURED: Mapping[str, Any] = {"in": None, "out": None, "h_score": None, "seconds": None, "measured": "", "run": ""}


def stands_for(row: SurveyRow) -> list[str]:
    """Return the titles of the rows that stand for a method of the survey."""
    found = [MERGE_METHODS[name].title for name in row.merges if name in MERGE_METHODS]
    found += [TRANSFORMS[name].title for name in row.transforms if name in TRANSFORMS]
    return found + [CALIBRATORS[name].title for name in row.calibrators if name in CALIBRATORS]


def methods_of(row: SurveyRow) -> list[Method]:
    """Return the methods of the table of methods that stand for a row, the closest first."""
    return [(name,) for name in row.merges] + [(name, BEHIND) for name in row.transforms]


def survey_table(best: Mapping[Method, Result], results: Iterable[Result]) -> pd.DataFrame:
    """Return one row for each of the survey's methods, in its order.

    Args:
        best: one result a method.
        results: all of them, for states and calibrators, which any run may have.
    """
    every = sorted(results, key=lambda found: (found.method != (BEHIND,), not found.default))  # the plain merge first
    rows = []
    for row in TABLE:
        rows.append(
            {
                "category": row.entry.category,
                "method": row.entry.method,
                "size": row.entry.size,
                "tuning": "no" if row.entry.tuning_free else "yes",
                "data": row.entry.data,
                "dynamic": "yes" if row.entry.dynamic else "no",
                "level": row.entry.level,
                "ours": ", ".join(stands_for(row)),
                **_measured(row, best, every),
                "remark": row.entry.remark,
            }
        )
    return pd.DataFrame(rows)


def _measured(row: SurveyRow, best: Mapping[Method, Result], every: Iterable[Result]) -> dict[str, Any]:
    """Return measurements of the closest of our methods that some run has, of a calibrator, or of a baseline."""
    for method in methods_of(row):
        found = best.get(method)
        if found is not None:
            names = [(MERGE_METHODS.get(name) or TRANSFORMS[name]).title for name in method]
            said = ", ".join(names) + ("" if found.default else ", parameters changed")
            return {
                "in": found.within,
                "out": found.out,
                "h_score": found.h_score,
                "seconds": found.seconds,
                "measured": said,
                "run": found.run or WITH_APP,
            }
    for state in (*row.calibrators, *([row.state] if row.state else [])):
        for found in every:
            values = found.states.get(state)
            if values:
                title = CALIBRATORS[state].title if state in CALIBRATORS else state.capitalize()
                names = [(MERGE_METHODS.get(name) or TRANSFORMS.get(name)) for name in found.method]
                merge = " + ".join(name.title for name in names if name)
                said = title if row.state else f"{title} behind {merge}"
                return {
                    **NOT_MEASURED,
                    "in": values.get("in"),
                    "out": values.get("out"),
                    "h_score": values.get("h_score"),
                    "measured": said,
                    "run": found.run or WITH_APP,
                }
    return dict(NOT_MEASURED)
