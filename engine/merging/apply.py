"""Transforms and a merge method in one go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..catalog import MERGE_METHODS, TRANSFORMS, TransformRow, check_needs, check_transforms, params_of, row_of
from ..errors import MergeError
from ..recipe import MethodCall
from ..types import Context, Merged, PerTask, Static, TaskVectors, Tensors, Weights


def merge(
    base: Weights, task_vectors: TaskVectors, transforms: Sequence[MethodCall], method: MethodCall, context: Context
) -> Merged:
    """Apply transforms and a merge method in the order a recipe gives.

    Args:
        base: the pretrained weights.
        task_vectors: of the chosen experts.
        transforms: changes of the task vectors, in order; those of stage ``merged_vector`` act after the merge.
        method: the merge method.
        context: what methods may ask for.

    Returns:
        The merged model; most of the work is done when its tensors are read.

    Raises:
        RecipeError: unknown names or parameters, or too few or too many experts.
        MergeError: a method cannot be carried out, or a transform does not fit the merge.
    """
    stages = _stages(transforms)
    row = row_of(MERGE_METHODS, method.method, "merge method")
    params = params_of(row, method.params)
    check_needs(row, len(task_vectors.experts))
    check_transforms(transforms, method)
    task_vectors, context, details = transformed(base, task_vectors, transforms, context)
    merged = row.load()(base, task_vectors, params, context)
    for transform, transform_params in stages:
        function = _after_merge(transform, row.learned(params))
        if function is None:
            continue
        if not isinstance(merged, Static):
            each = "task" if isinstance(merged, PerTask) else "image"
            raise MergeError(f"{transform.title} scales one merged model; {row.title} makes one for each {each}.")
        merged = function(base, task_vectors, merged, transform_params, context)
    if details:
        merged = replace(merged, info=replace(merged.info, details={**merged.info.details, "transforms": details}))
    return merged


def transformed(
    base: Weights, task_vectors: TaskVectors, transforms: Sequence[MethodCall], context: Context
) -> tuple[TaskVectors, Context, dict[str, Any]]:
    """Apply the transforms that change task vectors, as :func:`merge` does before its method.

    Returns:
        The task vectors that the method sees, its context, and what the transforms report, by their name.
    """
    details: dict[str, Any] = {}
    for transform, params in _stages(transforms):
        if transform.stage == "task_vectors":
            task_vectors = transform.load()(base, task_vectors, params, context)
            details[transform.name] = dict(getattr(task_vectors, "details", {}))
            context = Uncached(context)
    return task_vectors, context, details


def _stages(transforms: Sequence[MethodCall]) -> list[tuple[TransformRow, Any]]:
    rows = [(row_of(TRANSFORMS, call.method, "transform"), call.params) for call in transforms]
    return [(row, params_of(row, given)) for row, given in rows]


def _after_merge(transform: TransformRow, learned: str) -> Callable[..., Static] | None:
    if transform.stage == "merged_vector":
        return transform.load()
    if transform.after_learning and learned == "layer_coefficients":
        return transform.load_after_learning()
    return None


class Uncached:
    """A context without a cache, where what belongs to one expert may depend on all of them, as after a transform."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def cached(self, expert: str, quantity: str, params: Mapping[str, Any], compute: Callable[[], Tensors]) -> Tensors:
        """Compute, and keep nothing."""
        return compute()
