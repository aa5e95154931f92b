"""Names of samples: sentences that speak of images, said of another kind of data."""

import plotly.graph_objects as go

from engine.errors import EngineError
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
    """Change a figure about images into one about samples of another kind: its legend, hints and axes.

    Args:
        figure: changed in place; doing it twice changes nothing more.
        kind: of data.
    """
    if kind.many == USUAL.many:
        return
    for trace in figure.data:
        for name in ("name", "hovertemplate"):
            if isinstance(text := getattr(trace, name, None), str):
                trace[name] = called(text, kind)
    for axis in (*figure.select_xaxes(), *figure.select_yaxes()):
        if axis.title.text:
            axis.title.text = called(axis.title.text, kind)
