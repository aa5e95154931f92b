"""One result of several sets of experts: the seeds that the experts were trained with are the training seeds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from ..errors import ZooError
from .result import Cell, ExperimentResult, PointResult, Tuned
from .rights import Rights, Side, accuracy_side
from .spec import Experiment
from .verdict import deviation, judge


def pool(spec: Experiment, results: Sequence[ExperimentResult]) -> ExperimentResult:
    """Judge an experiment once on all sets of experts that it was measured with.

    Each set counts as a training seed (or as many as its runs had), so that intervals resample the sets along with the
    images. What is no mean over images of the report has Student's interval over the sets. A point that failed with
    one set is left out of the others.

    Args:
        spec: the experiment.
        results: one a set of experts, of zoos that differ in nothing else.

    Raises:
        ZooError: two results on one zoo, or on zoos of other data.
    """
    first = results[0]
    if len(results) == 1:
        return first
    digests = [result.zoo_digest for result in results]
    if len(set(digests)) < len(digests):
        raise ZooError("Two of the zoos are the same, so that their results are one. Name sets of other seeds.")
    for other in results[1:]:
        if (other.zoo, other.images, other.protocol) != (first.zoo, first.images, first.protocol):
            raise ZooError(
                f"{other.zoo} cannot be pooled with {first.zoo}: sets of experts have the same base, tasks and images."
            )
    every = [point for result in results for point in result.points]
    seeds = max((len(cell.values) for point in every for cell in point.cells.values()), default=1)
    points = tuple(_pooled(parts, seeds) for parts in zip(*(result.points for result in results), strict=True))
    table = {point.name: point.cells for point in points}
    sides = {point.name: _sides(spec, point) for point in points}
    exact = [measure.name for measure in spec.measures if measure.exact]
    checks = [
        check.model_copy(update={"text": found.text}) for check, found in zip(spec.checks, first.findings, strict=True)
    ]
    findings, verdict, reason = judge(checks, table, sides, exact)
    told = {
        "zoo_digest": hashlib.sha256("".join(digests).encode()).hexdigest(),
        "sets": len(results),
        "points": points,
        "findings": findings,
        "verdict": verdict,
        "reason": reason,
        "seconds": round(math.fsum(result.seconds for result in results), 1),
    }
    return first.model_copy(update=told)


def _pooled(parts: Sequence[PointResult], seeds: int) -> PointResult:
    """Put the seeds of one point one behind another; where a set has one alone, it stands for all that others have."""
    known = [name for name in parts[0].cells if all(name in part.cells for part in parts)]
    cells = {}
    for name in known:
        values = tuple(value for part in parts for value in _as_many(part.cells[name].values, seeds))
        cells[name] = Cell(values=values, mean=math.fsum(values) / len(values), sd=deviation(values))
    failed = " ".join(dict.fromkeys(part.failed for part in parts if part.failed))
    told = {
        "cells": cells,
        "seeds": tuple(range(seeds * len(parts))),
        "failed": failed,
        "rights": _rights([part.rights for part in parts], seeds),
        "tuned": tuple(_tuned(choices) for choices in zip(*(part.tuned for part in parts), strict=False)),
    }
    return parts[0].model_copy(update=told)


def _as_many(values: tuple[float, ...], seeds: int) -> tuple[float, ...]:
    return values * seeds if len(values) == 1 else values


def _rights(sets: Sequence[Rights | None], seeds: int) -> Rights | None:
    """Return correctness with the seeds of all sets; None where the images are not the same."""
    there = [rights for rights in sets if rights is not None]
    first = sets[0]
    if first is None or len(there) < len(sets):
        return None
    if any((r.inside, r.outside, r.images) != (first.inside, first.outside, first.images) for r in there):
        return None
    sides = zip(*(rights.unpack() for rights in there), strict=True)
    inside, outside = (
        {task: np.concatenate([_rows(side[task], seeds) for side in every]) for task in every[0]} for every in sides
    )
    return Rights.pack(inside, outside, first.images)


def _rows(matrix: np.ndarray, seeds: int) -> np.ndarray:
    return np.repeat(matrix, seeds, axis=0) if len(matrix) == 1 else matrix


def _tuned(choices: Sequence[Tuned]) -> Tuned:
    """Return a choice with what every set chose, in their order."""
    return choices[0].model_copy(update={"chosen": tuple(choice.chosen for choice in choices)})


def _sides(spec: Experiment, point: PointResult) -> dict[str, Side]:
    """Return the values by image of every measure that is an accuracy of the report."""
    found = {}
    for measure in spec.measures:
        cell = point.cells.get(measure.name)
        if cell is None or point.rights is None or not measure.path or measure.view:
            continue
        side = accuracy_side(point.rights, measure.path.replace("{state}", point.state), cell.mean)
        if side is not None:
            found[measure.name] = side
    return found
