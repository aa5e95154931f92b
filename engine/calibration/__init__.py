"""Calibrators: modules that are trained on paired features and repair a merged model's representations."""

from .base import Calibrator, calibrator_from_state, load_calibrator
from .output import OutputCalibrator
from .prob_surgery import ProbSurgery
from .report import FitReport, Monitor
from .surgery import Surgery

__all__ = [
    "Calibrator",
    "FitReport",
    "Monitor",
    "OutputCalibrator",
    "ProbSurgery",
    "Surgery",
    "calibrator_from_state",
    "load_calibrator",
]
