"""The views that pages offer of a run, each asked for as a page does that is opened for the first time."""

from __future__ import annotations

from ..manifest import locate_zoo, read_manifest
from ..report import Report
from ..zoo.making.records import complete_recipes
from ..zoo.modalities import modality_of
from .viewing.base import View, ViewRequest
from .viewing.opening import Opening
from .views import all_views


def offered_views(report: Report) -> list[tuple[View, ViewRequest]]:
    """Return the views that pages of a run open with, as they are declared, and the diagnosis of its worst task.

    Raises:
        EngineError: the zoo cannot be read.
    """
    manifest = read_manifest(locate_zoo(report.recipe.zoo))
    kind = modality_of(manifest)
    tasks = [manifest.expert_table[name].task for name in report.experts if name in manifest.expert_table]
    opening = Opening(report, tuple(complete_recipes(manifest.experts, tasks)), kind)
    return [
        (view, view.ask(report.recipe, **settings))
        for view in all_views().values()
        if view.opens is not None
        for settings in view.opens(opening)
    ]
