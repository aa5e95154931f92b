"""Facts that no place states, decided by the images: the reading with which the heads recognise most of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ...errors import EngineError
from ...types import Head, Progress, Weights
from ..encoders.backbone import load_encoder
from ..images.data import TaskData
from ..inspection.agreement import SURE, Judged, below, classify, spread_rows
from .architecture import TITLES, Architecture, Open

ROUNDS = (24, 96, 384, 1024)  # images a task: readings that fall behind are looked at no further
MOST_TASKS = 4
SHOWN = 5


@dataclass(frozen=True)
class Trial:
    """Images of a task, its head, and the model that should recognise them."""

    task: str
    model: str
    weights: Weights
    head: Head
    data: TaskData


@dataclass
class Reading:
    """One combination of candidates."""

    choice: dict[str, Any]
    label: str
    correct: np.ndarray  # (n,) of booleans
    log_probability: np.ndarray  # (n,) of the true class

    @property
    def share(self) -> float:
        """Return the share of images classified correctly."""
        return float(self.correct.mean()) if len(self.correct) else 0.0


def settle(architecture: Architecture, trials: list[Trial], progress: Progress) -> tuple[Architecture, list[str]]:
    """Decide the open facts of an architecture by trying every combination of what fits.

    A reading is taken when every other one recognises no more images and gives the true class surely less probability
    (by more than three standard errors over the same images), and when it is surely better than guessing.

    Args:
        architecture: with open facts.
        trials: what came along; the first few tasks are used.
        progress: told how far it is.

    Returns:
        The architecture, and a sentence for each fact that stays open: what was tried, and how it can be given.
    """
    tasks = list(dict.fromkeys(trial.task for trial in trials))[:MOST_TASKS]
    trials = [trial for trial in trials if trial.task in tasks]
    if not trials:
        return architecture, [
            _refusal(fact, "No images with a head came along to decide it") for fact in architecture.open
        ]
    names = [fact.name for fact in architecture.open]
    readings = [
        Reading(
            {name: value for name, (_, value) in zip(names, parts, strict=True)},
            ", ".join(f"{TITLES[name]} {text}" for name, (text, _) in zip(names, parts, strict=True)),
            np.zeros(0, bool),
            np.zeros(0),
        )
        for parts in product(*(fact.candidates for fact in architecture.open))
    ]
    ahead, done = list(readings), 0
    for number, until in enumerate(ROUNDS):
        progress(number / len(ROUNDS), f"Trying {len(ahead)} readings on {until} images a task")
        if not _look(architecture, ahead, trials, done, until - done):
            break
        done = until
        best = max(ahead, key=lambda reading: (int(reading.correct.sum()), reading.log_probability.sum()))
        ahead = [reading for reading in ahead if reading is best or not _behind(reading, best)]
        if len(ahead) == 1:
            break
    ranked = sorted(readings, key=lambda reading: (-len(reading.correct), -reading.share))
    if len(ahead) == 1 and _above_chance(ahead[0], trials):
        rest = next((reading for reading in ranked if reading is not ahead[0]), None)
        return architecture.settled(ahead[0].choice, _decided(ahead[0], rest, tasks)), []
    table = "; ".join(f"{reading.label}: {100 * reading.share:.1f} %" for reading in ranked[:SHOWN])
    more = f"; {len(ranked) - SHOWN} more" if len(ranked) > SHOWN else ""
    said = f"Classifying {done} images of each of {', '.join(tasks)} does not decide it ({table}{more})"
    return architecture, [_refusal(fact, said) for fact in architecture.open]


def _behind(reading: Reading, best: Reading) -> bool:
    """Return whether a reading is surely worse than the one that recognises most images."""
    if below(reading.correct, best.correct):
        return True
    gain = best.log_probability - reading.log_probability
    return float(gain.mean()) > SURE * float(gain.std()) / math.sqrt(len(gain))


def _look(architecture: Architecture, readings: list[Reading], trials: list[Trial], start: int, count: int) -> bool:
    """Classify further images under some readings; False where there are none left."""
    found: dict[int, list[Judged]] = {}
    for trial in trials:
        rows = spread_rows(trial.data, count, start)
        if not len(rows):
            continue
        for group in _by_config(architecture, readings):
            encoder = load_encoder(group[0][1].config, trial.weights)
            results = classify(encoder, trial.head, trial.data, rows, [settled.preprocess for _, settled in group])
            for (place, _), judged in zip(group, results, strict=True):
                found.setdefault(place, []).append(judged)
    for place, parts in found.items():
        reading = readings[place]
        reading.correct = np.concatenate([reading.correct, *(part.correct for part in parts)])
        reading.log_probability = np.concatenate([reading.log_probability, *(part.log_probability for part in parts)])
    return bool(found)


def _by_config(architecture: Architecture, readings: list[Reading]) -> list[list[tuple[int, Architecture]]]:
    """Readings with one config share an encoder."""
    groups: dict[str, list[tuple[int, Architecture]]] = {}
    for place, reading in enumerate(readings):
        settled = architecture.settled(reading.choice, "")
        groups.setdefault(repr(settled.config), []).append((place, settled))
    return list(groups.values())


def _above_chance(reading: Reading, trials: list[Trial]) -> bool:
    chance = float(np.mean([1 / len(trial.head.weight) for trial in trials]))
    count = len(reading.correct)
    return reading.correct.sum() > count * chance + SURE * math.sqrt(count * chance * (1 - chance))


def _decided(best: Reading, rest: Reading | None, tasks: list[str]) -> str:
    said = f"decided by images of {', '.join(tasks)}: base and experts recognise {100 * best.share:.1f} % with it"
    if rest is None:
        return said
    return f"{said}, {100 * rest.share:.1f} % with the next best ({rest.label})"


def _refusal(fact: Open, why: str) -> str:
    fitting = ", ".join(text for text, _ in fact.candidates[:SHOWN])
    more = " …" if len(fact.candidates) > SHOWN else ""
    return (
        f"The base's {TITLES[fact.name].lower()} cannot be known from its weights. Asked: {fact.tried}. What fits: "
        f"{fitting}{more}. {why}. {fact.how}."
    )


def trials_of(
    models: Mapping[str, Weights], tasks: Mapping[str, str], heads: Mapping[str, Head], data: Mapping[str, TaskData]
) -> list[Trial]:
    """Return what can be tried: the base and the task's expert on every task with a head and images.

    Args:
        models: weights of base and experts by name.
        tasks: expert → task.
        heads: by task.
        data: by task; tasks whose labels cannot be used are passed over.
    """
    found = []
    for task in data:
        if task not in heads:
            continue
        try:
            data[task].labels("test")
        except EngineError:
            continue
        found += [
            Trial(task, model, models[model], heads[task], data[task])
            for model in ("base", *(name for name, own in tasks.items() if own == task))
        ]
    return found
