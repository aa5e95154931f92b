"""Experiments: claims of the papers as recipes, with controls, to be repeated on any zoo. Free of torch."""

from .again import judge_again
from .pooled import pool
from .result import FILE, Cell, ExperimentResult, Finding, PointResult, Tuned, Verdict, read_result
from .rights import Rights, Side, accuracy_side
from .spec import Check, Experiment, Measure, Point, Published, Variant, experiment_names, read_experiment
from .verdict import judge

__all__ = [
    "FILE",
    "Cell",
    "Check",
    "Experiment",
    "ExperimentResult",
    "Finding",
    "Measure",
    "Point",
    "PointResult",
    "Published",
    "Rights",
    "Side",
    "Tuned",
    "Variant",
    "Verdict",
    "accuracy_side",
    "experiment_names",
    "judge",
    "judge_again",
    "pool",
    "read_experiment",
    "read_result",
]
