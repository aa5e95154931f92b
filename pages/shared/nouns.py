"""Names of samples: sentences that speak of images, said of another kind of data."""

from functools import partial

import plotly.graph_objects as go

from engine.errors import EngineError
from engine.figures.drawing import reworded
from engine.report import Report
from engine.zoo.modalities import USUAL, Modality, modality_of
from engine.zoo.nouns import called
from pages.shared.zoos import zoo_manifest

__all__ = ["called", "figure_called", "kind_of", "kind_of_zoo"]


def kind_of(report: Report) -> Modality:
    """Return the kind of data of a run's zoo; the usual one where the zoo is gone."""
    return kind_of_zoo(report.recipe.zoo)


def kind_of_zoo(zoo: str) -> Modality:
    """Return the kind of data of a zoo; the usual one where it is gone."""
    try:
        return modality_of(zoo_manifest(zoo))
    except EngineError:
        return USUAL


def figure_called(figure: go.Figure, kind: Modality) -> None:
    """Change a figure about images, in place, into one about samples of another kind."""
    reworded(figure, partial(called, kind=kind))
