"""An entry of the survey's overview of model merging, its Table 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SurveyCategory = Literal[
    "–", "Basic", "Weighted", "Sparse subspace", "Low-rank subspace", "Optimisation", "Calibration", "Routing"
]
Data = Literal["none", "labelled training", "labelled validation", "unlabelled test"]
Size = Literal["= 1×", "= N×", "> 1×", "≫ 1×"]
Level = Literal["–", "Global", "Task", "Layer", "Task or layer", "Parameter", "Sample"]


@dataclass(frozen=True, kw_only=True)
class SurveyEntry:
    """Facts that the survey's table gives of a method. They are the survey's, the remark is ours.

    The remark says what a person should know: where our row is not quite the survey's method, or why there is none.
    """

    place: int  # in the table, from 1
    method: str
    category: SurveyCategory
    level: Level
    tuning_free: bool
    data: Data = "none"
    size: Size = "= 1×"
    dynamic: bool = False
    remark: str = ""
