"""References of methods whose weights depend on the task or the input."""

from __future__ import annotations

from ...merging.apply import merge
from ...merging.masked import MASK, RESCALER, VECTOR, unpack
from ...recipe import MethodCall
from ...types import PerTask, Weights
from ...weights import LazyTaskVectors
from ..context import Offline, models, tensors_of
from ..measure import Check, Found
from ..reference import MergingReference


def merged_by_task(
    method: str, reference: MergingReference, precision: str
) -> tuple[Weights, LazyTaskVectors, PerTask]:
    """The base, the task vectors and the merge."""
    base, vectors = reference.vectors(precision)
    merged = merge(base, vectors, [], MethodCall(method=method), Offline(vectors.experts))
    return base, vectors, merged


def emr_vector(reference: MergingReference, name: str, precision: str) -> Found:
    """The unified task vector."""
    _, vectors, merged = merged_by_task("emr", reference, precision)
    return Found({layer: merged.parts[VECTOR + layer] for layer in vectors.names}, reference.output(name))


def emr_masks(reference: MergingReference, name: str, precision: str) -> Found:
    """The masks of all tasks."""
    _, vectors, merged = merged_by_task("emr", reference, precision)
    got = {
        f"{task.replace('expert', 'task')}/{layer}": unpack(
            merged.parts[f"{MASK}{task}/{layer}"], merged.parts[VECTOR + layer].shape
        )
        for task in merged.tasks
        for layer in vectors.names
    }
    return Found(got, reference.output(name))


def emr_model(reference: MergingReference, name: str, precision: str) -> Found:
    """The weights for one task, and all rescalers."""
    base, _, merged = merged_by_task("emr", reference, precision)
    expert = merged.tasks[int(name.removeprefix("emr_task"))]
    got = tensors_of(models(base, merged)[expert])
    rescalers = [merged.parts[RESCALER + task].item() for task in merged.tasks]
    return Found(
        {**got, "rescalers": rescalers}, {**reference.output(name), "rescalers": reference.values(name)["rescalers"]}
    )


def tall_model(reference: MergingReference, name: str, precision: str) -> Found:
    """The weights for one task."""
    base, _, merged = merged_by_task("tall", reference, precision)
    return Found(tensors_of(models(base, merged)[merged.tasks[1]]), reference.output(name))


CHECKS: dict[str, Check] = {
    "emr_unified": emr_vector,
    "emr_masks": emr_masks,
    "emr_task0": emr_model,
    "emr_task3": emr_model,
    "tall_task1_lam0.4": tall_model,
}
