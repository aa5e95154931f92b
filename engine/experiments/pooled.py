"""One result of several sets of experts: the seeds that the experts were trained with are the training seeds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ZooError
from .result import Cell, ExperimentResult, PointResult, Tuned
from .rights import Rights, Side, accuracy_side
from .spec import Experiment
from .verdict import deviation, judge


def pool(spec: Experiment, results: Sequence[ExperimentResult]) -> ExperimentResult:
    """Judge an experiment once on all sets of experts that it was measured with.

    Each set counts as one training seed, so that intervals resample the sets along with the images; where its runs had
    several seeds, they are averaged, since seeds of one set say nothing of another. What is no mean over images of the
    report has Student's interval over the sets. A point that failed with one set is left out of the others.

    Args:
        spec: the experiment.
        results: one a set of experts, of zoos that differ in nothing else.

    Raises:
        ZooError: two results on one zoo, or on zoos of other tasks or samples.
    """
    first = results[0]
    if len(results) == 1:
        return first
    digests = [result.zoo_digest for result in results]
    if len(set(digests)) < len(digests):
        raise ZooError("Two of the zoos are the same, so that their results are one. Name sets of other seeds.")
    alike = len({_asked(result) for result in results}) == 1
    sets = list(zip(*(result.points for result in results), strict=True)) if alike else []
    if not alike or any(map(_scored_otherwise, sets)):
        names = ", ".join(dict.fromkeys(result.zoo for result in results))
        raise ZooError(
            f"What was measured on {names} cannot be judged as one: sets of experts are measured in the same way, on "
            "the same tasks and images."
        )
    points = tuple(map(_pooled, sets))
    table = {point.name: point.cells for point in points}
    sides = {point.name: _sides(spec, point, parts) for point, parts in zip(points, sets, strict=True)}
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


def _asked(result: ExperimentResult) -> tuple[Any, ...]:
    """Return how a set of experts was measured."""
    return result.form, result.quick, result.zoo, result.protocol, result.split_seed, result.images


def _scored_otherwise(parts: Sequence[PointResult]) -> bool:
    """Tell whether sets were scored at a point on other tasks or images."""
    there = [part.rights for part in parts if part.rights is not None]
    return any(rights.layout != there[0].layout for rights in there)


def _pooled(parts: Sequence[PointResult]) -> PointResult:
    """Return one point with one value a set; what one set does not have is left out."""
    known = [name for name in parts[0].cells if all(name in part.cells for part in parts)]
    values = {name: tuple(part.cells[name].mean for part in parts) for name in known}
    told = {
        "cells": {name: Cell(values=v, mean=math.fsum(v) / len(v), sd=deviation(v)) for name, v in values.items()},
        "seeds": tuple(range(sum(len(part.seeds) for part in parts))),
        "failed": " ".join(dict.fromkeys(part.failed for part in parts if part.failed)),
        "rights": _rights(parts),
        "tuned": tuple(map(_tuned, zip(*(part.tuned for part in parts), strict=True))) if known else (),
    }
    return parts[0].model_copy(update=told)


def _rights(parts: Sequence[PointResult]) -> Rights | None:
    """Return correctness with the seeds of all sets one behind another; None where a set has none."""
    there = [part.rights for part in parts if part.rights is not None]
    if len(there) < len(parts):
        return None
    sides = zip(*(rights.by_task() for rights in there), strict=True)
    inside, outside = ({task: np.concatenate([side[task] for side in every]) for task in every[0]} for every in sides)
    return Rights.of(inside, outside, there[0].images)


def _tuned(choices: Sequence[Tuned]) -> Tuned:
    """Return a choice with what every set chose, in their order."""
    return choices[0].model_copy(update={"chosen": tuple(choice.chosen for choice in choices)})


def _sides(spec: Experiment, point: PointResult, parts: Sequence[PointResult]) -> dict[str, Side]:
    """Return the values by image of every measure that is an accuracy of the report, a row a set."""
    found = {}
    for measure in spec.measures:
        cell, place = point.cells.get(measure.name), measure.path.replace("{state}", point.state)
        if cell is None or not place or measure.view:
            continue
        sides = [accuracy_side(part.rights, place, point.state, cell.mean) for part in parts if part.rights is not None]
        there = [side.parts for side in sides if side is not None]
        if len(there) == len(parts):
            rows = {name: np.stack([by_image[name].mean(axis=0) for by_image in there]) for name in there[0]}
            found[measure.name] = Side(cell.mean, rows)
    return found
