"""Experiments: claims of the papers as recipes, with controls, to be repeated on any zoo. Free of torch."""

from .result import FILE, Cell, ExperimentResult, Finding, PointResult, read_result
from .spec import Check, Experiment, Measure, Point, Published, experiment_names, read_experiment
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
    "experiment_names",
    "judge",
    "read_experiment",
    "read_result",
]
