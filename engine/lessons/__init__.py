"""Lessons: short steps that ask for a prediction and then show what was measured. Free of torch."""

from .check import Problem, check_lesson, shown
from .measured import (
    Networks,
    network_names,
    networks_table,
    quoted,
    read_networks,
    shipped_result,
    shipped_results,
    source_names,
    source_of,
    sources,
)
from .numbers import Numbers, digits_of, places_in
from .spec import Control, Lesson, Prediction, Step, lesson_names, own_folder, own_lessons, read_lesson

__all__ = [
    "Control",
    "Lesson",
    "Networks",
    "Numbers",
    "Prediction",
    "Problem",
    "Step",
    "check_lesson",
    "digits_of",
    "lesson_names",
    "network_names",
    "networks_table",
    "own_folder",
    "own_lessons",
    "places_in",
    "quoted",
    "read_lesson",
    "read_networks",
    "shipped_result",
    "shipped_results",
    "shown",
    "source_names",
    "source_of",
    "sources",
]
