"""Report parts and tables become Plotly figures here, each with the table behind it. Free of torch and Streamlit."""

from ..analysis.layers import COMPONENTS, Layer, layers_of
from .accuracy import accuracy_bars, accuracy_table, confusion_figure, confusion_table, delta_heatmap, scored_states
from .bias import MEASURES, Measure, bias_bars, bias_table, class_bias
from .compare import Compared, average_table, comparable_states, lettered, task_table
from .curves import curve_table, training_curves
from .differences import measurement_warnings, recipe_differences
from .document import html_document
from .drawing import Drawing
from .palette import state_colour, state_title, task_colours
from .pareto import pareto_figure, point_table
from .ranking import layer_ranking, ranked_layers
from .salience import kept_curve, kept_figure, mask_figure, masks_at, salience_heatmap
from .sweep import sweep_curves, sweep_map

__all__ = [
    "COMPONENTS",
    "MEASURES",
    "Compared",
    "Drawing",
    "Layer",
    "Measure",
    "accuracy_bars",
    "accuracy_table",
    "average_table",
    "bias_bars",
    "bias_table",
    "class_bias",
    "comparable_states",
    "confusion_figure",
    "confusion_table",
    "curve_table",
    "delta_heatmap",
    "html_document",
    "kept_curve",
    "kept_figure",
    "layer_ranking",
    "layers_of",
    "lettered",
    "mask_figure",
    "masks_at",
    "measurement_warnings",
    "pareto_figure",
    "point_table",
    "ranked_layers",
    "recipe_differences",
    "salience_heatmap",
    "scored_states",
    "state_colour",
    "state_title",
    "sweep_curves",
    "sweep_map",
    "task_colours",
    "task_table",
    "training_curves",
]
