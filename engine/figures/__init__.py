"""Report parts and tables become Plotly figures here, each with the table behind it. Free of torch and Streamlit."""

from .accuracy import accuracy_bars, accuracy_table, confusion_figure, confusion_table, delta_heatmap, scored_states
from .bias import MEASURES, Measure, bias_bars, bias_table, class_bias
from .curves import curve_table, training_curves
from .drawing import Drawing
from .layers import COMPONENTS, Layer, layers_of
from .palette import state_colour, state_title, task_colours
from .salience import kept_curve, kept_figure, mask_figure, masks_at, salience_heatmap

__all__ = [
    "COMPONENTS",
    "MEASURES",
    "Drawing",
    "Layer",
    "Measure",
    "accuracy_bars",
    "accuracy_table",
    "bias_bars",
    "bias_table",
    "class_bias",
    "confusion_figure",
    "confusion_table",
    "curve_table",
    "delta_heatmap",
    "kept_curve",
    "kept_figure",
    "layers_of",
    "mask_figure",
    "masks_at",
    "salience_heatmap",
    "scored_states",
    "state_colour",
    "state_title",
    "task_colours",
    "training_curves",
]
