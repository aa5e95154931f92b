"""The views that pages offer of a run, each asked for as a page does that is opened for the first time."""

from __future__ import annotations

from ..figures.diagnosis.lost import worst_task
from ..manifest import locate_zoo, read_manifest
from ..report import Report
from ..zoo.making.records import by_recipe
from ..zoo.modalities import modality_of
from .viewing.base import View, ViewRequest
from .viewing.on_weights import MERGED, PRETRAINED
from .views.attention import ATTENTION
from .views.blame import BLAME
from .views.by_recipe import BY_RECIPE
from .views.connection import CONNECTION
from .views.coverage import COVERAGE
from .views.depth import DEPTH
from .views.direction import DIRECTION
from .views.disentanglement import DISENTANGLEMENT
from .views.energy import ENERGY
from .views.geometry import GEOMETRY
from .views.interpolation import INTERPOLATION
from .views.measures import TASK_MEASURES
from .views.occlusion import OCCLUSION
from .views.outliers import OUTLIERS
from .views.predictions import PREDICTIONS
from .views.receipt import RECEIPT
from .views.remedies import REMEDIES
from .views.sharpness import SHARPNESS
from .views.shift import SHIFT
from .views.spectra import SPECTRA
from .views.stitching import STITCHING
from .views.swaps import SWAPS
from .views.transplant import TRANSPLANT

ON_WEIGHTS: tuple[View, ...] = (RECEIPT, GEOMETRY, SPECTRA)
ON_IMAGES: tuple[View, ...] = (DIRECTION, SWAPS, COVERAGE, OUTLIERS, PREDICTIONS, DEPTH, STITCHING, SHIFT)
DIAGNOSED: tuple[View, ...] = (DEPTH, BLAME, TRANSPLANT, ATTENTION, REMEDIES)  # views on one task
DIAGNOSED_IMAGES = 500  # of the task, at most
HIDDEN_WORDS = 300  # texts of the task, at most, whose words are hidden in turn
POINTS, ON_THE_WAY = 11, 200  # models between pretrained and merged one, and images a task


def offered_views(report: Report) -> list[tuple[View, ViewRequest]]:
    """Return the views that pages of a run open with, and the diagnosis of its worst task.

    Raises:
        EngineError: the zoo cannot be read.
    """
    recipe, worst = report.recipe, worst_task(report)
    kind = modality_of(read_manifest(locate_zoo(recipe.zoo)))
    found: list[tuple[View, ViewRequest]] = [(view, view.ask(recipe)) for view in ON_WEIGHTS]
    if not report.accuracy:
        return found
    found += [(view, view.ask(recipe)) for view in ON_IMAGES]
    if report.merged.kind == "static":
        path = {"start": PRETRAINED, "end": MERGED, "points": POINTS, "images": ON_THE_WAY}
        found.append((INTERPOLATION, INTERPOLATION.ask(recipe, **path)))
    found += before_merging(report)
    if worst is not None:
        found += [(view, view.ask(recipe, task=worst, images=DIAGNOSED_IMAGES)) for view in DIAGNOSED]
    if kind.inside:
        found.append((TASK_MEASURES, TASK_MEASURES.ask(recipe)))
        if worst is not None:
            found.append((OCCLUSION, OCCLUSION.ask(recipe, task=worst, images=HIDDEN_WORDS)))
    return [(view, asked) for view, asked in found if not view.refusal(kind)]


def before_merging(report: Report) -> list[tuple[View, ViewRequest]]:
    """Return what the page Before merging opens with: experts by recipe, the first two, the first task."""
    recipe, tasks = report.recipe, report.tasks_of("in")
    if len(report.experts) < 2 or not tasks:
        return []
    one, two, *_ = report.experts
    ways = tuple(by_recipe(read_manifest(locate_zoo(recipe.zoo)).experts))
    return [
        (BY_RECIPE, BY_RECIPE.ask(recipe, recipes=ways)),
        (DISENTANGLEMENT, DISENTANGLEMENT.ask(recipe, first=one, second=two)),
        (SHARPNESS, SHARPNESS.ask(recipe, task=tasks[0])),
        (ENERGY, ENERGY.ask(recipe)),
        (CONNECTION, CONNECTION.ask(recipe, start=one, end=two)),
    ]
