"""The table of what happens before merging: fine-tuning, changing an architecture, and aligning networks."""

from __future__ import annotations

import pandas as pd

from ..catalog import ALIGNMENTS, FINE_TUNING, AlignmentRow, FineTuningRow
from ..catalog.fine_tuning import DISTILLATION
from ..catalog.words import BEFORE_MERGING, needs_of
from ..zoo.kinds import known_kinds


def premerging_rows() -> list[FineTuningRow | AlignmentRow]:
    """Return the rows of the catalogue that act before merging, in its order."""
    return [*FINE_TUNING.values(), DISTILLATION, *ALIGNMENTS.values()]


def premerging_table() -> pd.DataFrame:
    """Return one row for each recipe of fine-tuning, for distillation and for each way to align."""
    rows = []
    for row in premerging_rows():
        rows.append(
            {
                "family": BEFORE_MERGING[row.category],
                "title": row.title,
                "summary": row.summary,
                "cost": row.cost if row.name in FINE_TUNING else None,
                "makes": _makes(row),
                "needs": needs_of(row),
                "kinds": known_kinds(),
                "source": row.url,
            }
        )
    return pd.DataFrame(rows)


def _makes(row: FineTuningRow | AlignmentRow) -> str:
    """Return what a row leaves behind."""
    if isinstance(row, AlignmentRow):
        return "an expert in another order of units"
    if row.joint:
        return "a reference of the zoo"
    kind = "an expert evaluated linearised" if row.forward == "linearised" else "an expert"
    return f"{kind}, with low-rank factors" if row.factors else kind
