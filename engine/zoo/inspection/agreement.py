"""A smoke run: some images of every task through base and expert, and how well their heads classify them."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import EngineError
from ...preparation import Preparation
from ...types import Finding, Head
from ..encoders.backbone import architecture, load_encoder, normalised, resized
from ..folder import Zoo
from ..task_data import TaskData

LOOKED_AT = 96  # images a task
AT_ONCE = 32
SURE = 3.0  # standard errors


@dataclass(frozen=True)
class Score:
    """The answers of a model to some images of a task."""

    correct: np.ndarray  # (n,) of booleans, the same images for every model
    classes: int

    @property
    def share(self) -> float:
        """Return the share of images classified correctly."""
        return float(self.correct.mean()) if len(self.correct) else 0.0

    @property
    def above_chance(self) -> bool:
        """Return whether that is surely more than a guess for each image would reach."""
        chance, count = 1 / self.classes, len(self.correct)
        return self.correct.sum() > count * chance + SURE * math.sqrt(count * chance * (1 - chance))


def below(low: np.ndarray, high: np.ndarray) -> bool:
    """Tell whether one model is surely worse than another on the same images (both (n,) of booleans)."""
    differing = int((low != high).sum())
    return int(high.sum()) - int(low.sum()) > SURE * math.sqrt(max(differing, 1))


def spread_rows(data: TaskData, count: int, start: int = 0) -> np.ndarray:
    """Return up to ``count`` rows of the test split, evenly spread; further ones for a later ``start``.

    Args:
        data: of a task.
        count: how many.
        start: how many were looked at before.
    """
    rows = data.usable("test")
    order = np.argsort([int(f"{number:032b}"[::-1], 2) for number in range(len(rows))], kind="stable")
    return np.sort(rows[order[start : start + count]])


@dataclass(frozen=True)
class Judged:
    """The answers to images of a task under one preprocessing."""

    correct: np.ndarray  # (n,) of booleans
    log_probability: np.ndarray  # (n,) of the true class, float64


@torch.inference_mode()
def classify(
    encoder: nn.Module, head: Head, data: TaskData, rows: np.ndarray, preprocesses: Sequence[Preparation]
) -> list[Judged]:
    """Classify test images under one or several preprocessings.

    Args:
        encoder: an image encoder.
        head: the task's.
        data: its images.
        rows: positions in the test split, (n,).
        preprocesses: how images become tensors.
    """
    labels = torch.as_tensor(data.labels("test")[rows])
    found: list[list[Tensor]] = [[] for _ in preprocesses]
    decoded: dict[tuple, Any] = {}
    for number, preprocess in enumerate(preprocesses):
        images = decoded.setdefault(preprocess.reading, data.samples("test", rows, preprocess))
        for first in range(0, len(rows), AT_ONCE):
            pixels = normalised(resized(images[first : first + AT_ONCE], preprocess), preprocess)
            logits = head.logits(encoder(pixels))
            true = labels[first : first + AT_ONCE]
            log_probability = logits.log_softmax(dim=1).gather(1, true[:, None])[:, 0]
            found[number].append(torch.stack([(logits.argmax(dim=1) == true).double(), log_probability]))
    judged = [torch.cat(parts, dim=1).numpy() if parts else np.zeros((2, 0)) for parts in found]
    return [Judged(both[0].astype(bool), both[1]) for both in judged]


def agreement(zoo: Zoo, tasks: Sequence[str]) -> Iterator[Finding]:
    """Classify some images of every task by the base and by the task's expert.

    An expert that does worse than the base on the task that it was trained on was not read as it was meant: another
    architecture, preprocessing, head or order of classes; or its training failed. Experts that are meant to be
    evaluated linearised answer otherwise in the ordinary encoder, so they are named and not judged.
    """
    chosen = {task: head for task in tasks if (head := _head(zoo, task)) is not None}
    if not chosen:
        return
    config = architecture(zoo.folder, zoo.manifest)
    scores: dict[str, dict[str, Score]] = {}
    for model in ("base", *zoo.manifest.expert_table):
        expert = zoo.manifest.expert_table.get(model)
        wanted = [task for task in chosen if expert is None or expert.task == task]
        if not wanted:
            continue
        if expert is not None and expert.forward == "linearised":
            yield Finding("note", f"{model}: trained to be evaluated linearised, so it is not classified with here")
            continue
        try:
            encoder = load_encoder(config, zoo.weights(model))
        except EngineError:
            continue  # what is wrong with a model is said where it is looked at by itself
        for task in wanted:
            scores.setdefault(task, {})[model] = _score(zoo, encoder, task, chosen[task])
        held = weakref.ref(encoder)
        del encoder  # before the next one is loaded
        if held() is not None:  # some of transformers' models hold themselves
            gc.collect()
    for task, found in scores.items():
        if "base" not in found:
            continue
        yield from _compare(zoo, task, found)


def _head(zoo: Zoo, task: str) -> Head | None:
    """Return the head of a task that has images; what is wrong with either is said where it is looked at by itself."""
    try:
        data = zoo.open_data(task)
        if data is None or not len(data.labels("test")):
            return None
        return zoo.heads([task])[0][task]
    except EngineError:
        return None


def _score(zoo: Zoo, encoder: nn.Module, task: str, head: Head) -> Score:
    data = zoo.open_data(task)
    rows = spread_rows(data, LOOKED_AT)
    judged = classify(encoder, head, data, rows, [zoo.preprocess()])[0]
    return Score(judged.correct, len(head.weight))


def _compare(zoo: Zoo, task: str, found: dict[str, Score]) -> Iterator[Finding]:
    base = found["base"]
    count = len(base.correct)
    for model, score in found.items():
        if model == "base":
            continue
        said = f"{100 * score.share:.0f} % of {count} {zoo.modality.many} of '{task}'"
        if below(score.correct, base.correct):
            yield Finding(
                "warning",
                f"Expert '{model}' classifies {said} correctly, the base {100 * base.share:.0f} %. An expert below its "
                f"base on its own task is read wrongly ({zoo.modality.suspects}), or its training failed.",
            )
        elif not score.above_chance:
            yield Finding(
                "warning",
                f"Expert '{model}' classifies {said} correctly, about as a guess among {score.classes} classes would. "
                f"Check {zoo.modality.suspects}.",
            )
    expert = zoo.manifest.expert_of(task)
    shares = [f"base {100 * base.share:.0f} %"]
    shares += [f"{expert.name} {100 * found[expert.name].share:.0f} %"] if expert and expert.name in found else []
    yield Finding("note", f"{task}: {', '.join(shares)} of {count} test {zoo.modality.many} classified correctly")
