"""Names of samples: sentences that speak of images, said of another kind of data."""

from engine.errors import EngineError
from engine.figures.drawing import figure_called
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
