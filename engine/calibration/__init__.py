"""Calibrators: modules that are trained on paired features and repair a merged model's representations."""

from .base import Calibrator, calibrator_from_state, load_calibrator
from .coefficients import JointCalibrator
from .deep import DeepCalibrator
from .deep_training import fit_deep
from .interv_merge import IntervMerge
from .output import OutputCalibrator
from .prob_surgery import ProbSurgery
from .report import FitReport, Monitor
from .surgery import Surgery
from .surgery_joint import SurgeryJoint
from .surgery_v2 import SurgeryV2

__all__ = [
    "Calibrator",
    "DeepCalibrator",
    "FitReport",
    "IntervMerge",
    "JointCalibrator",
    "Monitor",
    "OutputCalibrator",
    "ProbSurgery",
    "Surgery",
    "SurgeryJoint",
    "SurgeryV2",
    "calibrator_from_state",
    "fit_deep",
    "load_calibrator",
]
