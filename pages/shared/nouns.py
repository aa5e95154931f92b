"""Names of samples: sentences that speak of images, said of another kind of data."""

import re

import plotly.graph_objects as go

from engine.errors import EngineError
from engine.report import Report
from engine.zoo.modalities import USUAL, Modality, modality_of
from pages.shared.zoos import zoo_manifest

SPOKEN = "images"  # what sentences and figures speak of
NAMED = re.compile(r"\b(?P<article>[Aa]n )?(?P<noun>[Ii]mages?)\b")


def kind_of(report: Report) -> Modality:
    """Return the kind of data of a run's zoo; the usual one where the zoo is gone."""
    return kind_of_zoo(report.recipe.zoo)


def kind_of_zoo(zoo: str) -> Modality:
    """Return the kind of data of a zoo; the usual one where it is gone."""
    try:
        return modality_of(zoo_manifest(zoo))
    except EngineError:
        return USUAL


def called(text: str, kind: Modality) -> str:
    """Return a sentence about images as one about samples of another kind.

    Args:
        text: with the words "image" and "images".
        kind: of data.
    """
    if kind.many == SPOKEN:
        return text

    def name(found: re.Match[str]) -> str:
        noun = kind.many if found["noun"].endswith("s") else kind.one
        noun = noun.capitalize() if found["noun"][0] == "I" else noun
        article = found["article"] or ""
        return (article[0] + " " if article and noun[0].lower() not in "aeiou" else article) + noun

    return NAMED.sub(name, text)


def figure_called(figure: go.Figure, kind: Modality) -> None:
    """Change a figure about images into one about samples of another kind: its legend, hints and axes.

    Args:
        figure: changed in place; doing it twice changes nothing more.
        kind: of data.
    """
    if kind.many == SPOKEN:
        return
    for trace in figure.data:
        for name in ("name", "hovertemplate"):
            if isinstance(text := getattr(trace, name, None), str):
                trace[name] = called(text, kind)
    for axis in (*figure.select_xaxes(), *figure.select_yaxes()):
        if axis.title.text:
            axis.title.text = called(axis.title.text, kind)
