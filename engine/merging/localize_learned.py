"""Localize-and-Stitch with masks that are learned on labelled images."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from ..catalog.sparse import LearnedLocalizeParams
from ..types import Context, MergeInfo, Static, TaskVectors, Weights
from ..weights.on_device import on_device
from .adamerging import predict
from .assemble import add_to_base
from .localize import largest_entries, stitched


def localize_learned(
    base: Weights, task_vectors: TaskVectors, params: LearnedLocalizeParams, context: Context
) -> Static:
    """Learn for each expert which entries its task needs, and where several need the same one, take their mean.

    Experts are learned one after the other: the scores of one, and a mask of one byte an entry for all, are held. An
    accelerator holds the task vectors as well, and the scores with them.

    Source: He et al., TMLR 2025, arXiv:2408.13656, §3.
    Departure: gradients are averaged over the images of an epoch before scores move, as in the authors' code, whose
        penalty moves scores away from zero (``penalty: signed``); the paper's lowers them all (``l1``).
    """
    first = largest_entries(task_vectors, params.density, context)
    masks = {name: first(name) for name in task_vectors.names}
    kept: dict[str, float] = {}
    device = context.head(context.tasks[0]).weight.device
    start, vectors = on_device(base, task_vectors, device, beside=1)
    place = torch.device("cpu") if vectors is task_vectors else device
    for index, (expert, task) in enumerate(zip(task_vectors.experts, context.tasks, strict=True)):
        scores = {
            name: mask[index].to(place, vectors.dtype).sub_(0.5).mul_(2 * params.start) for name, mask in masks.items()
        }
        stream = context.batches(task, "validation", params.batch_size)
        for epoch in range(params.epochs):
            done = (index + epoch / params.epochs) / len(task_vectors.experts)
            context.progress(done, f"Localising {expert}, epoch {epoch + 1} of {params.epochs}")
            _update(scores, start, vectors, expert, task, stream, params, context)
        for name, score in scores.items():
            masks[name][index].copy_(score > 0)
        kept[expert] = sum(mask[index].sum().item() for mask in masks.values())
    entries = sum(mask[0].numel() for mask in masks.values())
    details = {"kept_percent": {expert: 100 * count / max(entries, 1) for expert, count in kept.items()}}
    return add_to_base(
        base, task_vectors, lambda name: stitched(task_vectors.stack(name), masks[name]), MergeInfo(details=details)
    )


def _update(
    scores: dict[str, Tensor],
    base: Weights,
    task_vectors: TaskVectors,
    expert: str,
    task: str,
    stream: Iterator[tuple[Tensor, Tensor | None]],
    params: LearnedLocalizeParams,
    context: Context,
) -> None:
    """Move an expert's scores by the mean gradient over one epoch's images and by the penalty."""
    batches = max(params.examples // params.batch_size, 1)
    images, labels = next(stream)
    weights = {name: base.tensor(name).to(images.device) for name in base.names}
    for name, score in scores.items():
        soft = task_vectors.vector(name, expert).mul_(score.sigmoid()).add_(base.tensor(name).to(task_vectors.dtype))
        weights[name] = soft.to(images.device).requires_grad_()
    for number in range(batches):
        if number:
            images, labels = next(stream)
        logits = predict(context.forward(weights, images), context.head(task))
        (functional.cross_entropy(logits, labels) / batches).backward()
    for name, score in scores.items():
        soft = score.sigmoid()
        steepness = soft.mul_(1 - soft)
        force = torch.full_like(score, params.strength) if params.penalty == "l1" else -params.strength * score.sign()
        slope = weights[name].grad
        if slope is not None:
            force += task_vectors.vector(name, expert).mul_(slope.to(score)).mul_(params.learning_rate)
        score -= steepness * force
