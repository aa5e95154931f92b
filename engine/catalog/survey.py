"""The survey's overview of model merging as a table: the entries of the catalog's rows, and its two baselines.

Facts of the table are the survey's: Model merging in LLMs, MLLMs, and beyond, Table 2. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import CALIBRATORS, MERGE_METHODS, TRANSFORMS, Row
from .survey_entry import SurveyEntry

SOURCE = "Yang et al., Model merging in LLMs, MLLMs, and beyond, 2024, arXiv:2408.07666, Table 2"


@dataclass(frozen=True)
class SurveyRow:
    """A method of the table and what stands for it here.

    ``merges``, ``transforms`` and ``calibrators`` name rows of the catalog, the closest one first; ``state`` is the
    state of a run that shows a baseline, for which nothing is merged.
    """

    entry: SurveyEntry
    merges: tuple[str, ...] = ()
    transforms: tuple[str, ...] = ()
    calibrators: tuple[str, ...] = ()
    state: str = ""


BASELINES = (
    SurveyRow(
        SurveyEntry(
            place=1,
            method="Traditional MTL",
            category="–",
            level="–",
            tuning_free=False,
            data="labelled training",
            remark="Trains one model on all tasks together and merges no weights; a zoo may bring such a model, which "
            "is shown as the state 'multitask'.",
        ),
        state="multitask",
    ),
    SurveyRow(
        SurveyEntry(
            place=2,
            method="Individual Models",
            category="–",
            level="–",
            tuning_free=False,
            data="labelled training",
            size="= N×",
            remark="The experts themselves; nothing is merged. Every run shows them as the state 'expert'.",
        ),
        state="expert",
    ),
)


def _standing(rows: Mapping[str, Row], closest: str) -> tuple[str, ...]:
    """Return the row of that name and those that stand with it, in their order; empty where it is of another table."""
    with_it = (row.name for row in rows.values() if row.survey_with == closest)
    return tuple(name for name in (closest, *with_it) if name in rows)


def _of_rows() -> tuple[SurveyRow, ...]:
    tables = (MERGE_METHODS, TRANSFORMS, CALIBRATORS)
    rows = [row for table in tables for row in table.values() if row.survey]
    return tuple(SurveyRow(row.survey, *(_standing(table, row.name) for table in tables)) for row in rows)


TABLE: tuple[SurveyRow, ...] = tuple(sorted((*BASELINES, *_of_rows()), key=lambda row: row.entry.place))
