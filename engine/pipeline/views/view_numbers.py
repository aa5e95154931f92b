"""Analyses of views on a run: (the view's folder, the run's report, the zoo, a state, parameters) → a number."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...report import Report
from ...zoo.folder import Zoo
from .request import read_document


def stitched(folder: Path, report: Report, zoo: Zoo, state: str, params: Mapping[str, Any]) -> float | None:
    """Mean accuracy over in-domain tasks of networks stitched from a state and each task's expert, in percent.

    ``order``: ``begins`` (the state's parts first) or ``ends``. ``at``: ``inside``, the mean over all places between
    two parts, or the number of parts that come first, negative from the end.
    """
    found = []
    for part in read_document(folder, "stitching")["tasks"].values():
        if state not in part["states"]:
            return None
        values = part["states"][state][params.get("order", "begins")]
        at = params.get("at", "inside")
        found.append(np.mean(values[1:-1]) if at == "inside" else values[at])
    return float(np.mean(found))


def linearity(folder: Path, report: Report, zoo: Zoo, state: str, params: Mapping[str, Any]) -> float | None:
    """Cosine of a state's activations with the combination of the experts', mean over in-domain tasks.

    ``quantity``: ``cosine``, or ``change`` for that of the changes against the pretrained model. ``at``: ``blocks``,
    the mean over all of them, or ``output``, the features.
    """
    found = []
    for part in read_document(folder, "stitching")["tasks"].values():
        values = part["linearity"].get(state, {}).get(params.get("quantity", "cosine"))
        chosen = (values or [None])[-1:] if params.get("at", "blocks") == "output" else (values or [None])[:-1]
        if not chosen or None in chosen:
            return None
        found.append(np.mean(chosen))
    return float(np.mean(found))


def shifted(folder: Path, report: Report, zoo: Zoo, state: str, params: Mapping[str, Any]) -> float | None:
    """A state on images of a shifted domain: mean over in-domain tasks of the means over kinds of shift.

    ``kinds``: which; by default a task's own shifted versions where the zoo has some, else all drawn ones.
    ``quantity``: ``accuracy`` (percent) or ``l1`` to the expert.
    """
    found = []
    for part in read_document(folder, "shift")["tasks"].values():
        drawn = [kind for kind in part["shifts"] if kind != "none" and kind not in part["own"]]
        values = [
            part["shifts"][kind].get(state, {}).get(params.get("quantity", "accuracy"))
            for kind in params.get("kinds") or part["own"] or drawn
        ]
        if not values or None in values:
            return None
        found.append(np.mean(values))
    return float(np.mean(found))
