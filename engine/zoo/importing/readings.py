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
from ..encoders.architecture import tower_size
from ..encoders.backbone import load_encoder
from ..images.data import TaskData
from ..inspection.agreement import SURE, Judged, below, classify, spread_rows
from .architecture import TITLES, Architecture, Fault, Open

ROUNDS = (24, 96, 384, 1024)  # images a task: readings that fall behind are looked at no further
MOST_TASKS = 4
MOST_WORK = 1e14  # operations of a further round, about a quarter of an hour on two cores
HEADS = "head_width"
LEAST = 100  # answers of experts that must have had the chance to speak against a name
SHOWN = 5


@dataclass(frozen=True)
class Trial:
    """Images of a task, its head, and the model that should recognise them."""

    task: str
    model: str
    weights: Weights
    head: Head
    data: TaskData


@dataclass(eq=False)
class Reading:
    """One combination of candidates."""

    choice: dict[str, Any]
    label: str
    correct: np.ndarray  # (n,) of booleans
    log_probability: np.ndarray  # (n,) of the true class
    of_expert: np.ndarray  # (n,) of booleans: whether the task's expert answered, not the base

    @property
    def rank(self) -> tuple[float, ...]:
        """Return how good it is: images that experts recognise, then all, then probabilities."""
        return (
            float(self.correct[self.of_expert].sum()),
            float(self.correct.sum()),
            float(self.log_probability.sum()),
        )

    @property
    def share(self) -> float:
        """Return the share of images classified correctly."""
        return float(self.correct.mean()) if len(self.correct) else 0.0


def settle(architecture: Architecture, trials: list[Trial], progress: Progress) -> tuple[Architecture, list[Fault]]:
    """Decide the open facts of an architecture by trying every combination of what fits.

    A reading falls out when the best is surely better, by more than three standard errors over the same images. With
    other attention heads that is in images recognised by base and experts, or in the probability of their true classes.
    With the same heads it is in images that experts recognise on their own tasks: a wrong activation or preprocessing
    can make a model more certain, and a base recognise more. A fact is decided when all readings that are left, which
    must be surely better than guessing, agree on a candidate. Preprocessings that nobody means (controls) take part;
    where one of them is left, nothing is decided.

    Measured error rates stand in ``docs/bring.md``.

    Args:
        architecture: with open facts.
        trials: what came along; the first few tasks are used.
        progress: told how far it is.

    Returns:
        The architecture, and a fault for each fact that stays open: what was tried, and how it can be given.
    """
    tasks = list(dict.fromkeys(trial.task for trial in trials))[:MOST_TASKS]
    trials = [trial for trial in trials if trial.task in tasks]
    if not trials:
        return architecture, [
            _refusal(fact, "No images with a head came along to decide it") for fact in architecture.open
        ]
    readings = _readings(architecture)
    ahead, best, done = list(readings), readings[0], 0
    tower = tower_size(architecture.settled(best.choice, "").config)
    for number, until in enumerate(ROUNDS):
        work = (until - done) * len(ahead) * len(trials) * (tower.flops if tower else 0)
        if number and work > MOST_WORK:
            break
        progress(number / len(ROUNDS), f"Trying {len(ahead)} readings on {until} images a task")
        if not _look(architecture, ahead, trials, done, until - done):
            break
        done = until
        best = max(ahead, key=lambda reading: reading.rank)
        ahead = [reading for reading in ahead if reading is best or not _behind(reading, best)]
        if len(ahead) == 1:
            break
    ranked = sorted(readings, key=lambda reading: (-len(reading.correct), -reading.share))
    if all(_above_chance(reading, trials) for reading in ahead):
        rest = next((reading for reading in ranked if reading not in ahead), None)
        architecture = architecture.settled(_agreed(architecture, ahead), _decided(best, rest, tasks))
        architecture = _named(architecture, ahead, tasks) or architecture
    table = "; ".join(f"{reading.label}: {100 * reading.share:.1f} %" for reading in ranked[:SHOWN])
    more = f"; {len(ranked) - SHOWN} more" if len(ranked) > SHOWN else ""
    looked_at = {trial.task: min(done, len(trial.data.usable("test"))) for trial in trials}
    images = ", ".join(f"{count:,} images of {task}" for task, count in looked_at.items())
    said = f"Classifying {images} does not decide it ({table}{more})"
    return architecture, [_refusal(fact, said) for fact in architecture.open]


def _agreed(architecture: Architecture, ahead: list[Reading]) -> dict[str, Any]:
    """Return the facts in which all readings that are left agree on a candidate."""
    first = ahead[0].choice
    return {
        fact.name: first[fact.name]
        for fact in architecture.open
        if all(reading.choice[fact.name] == first[fact.name] for reading in ahead)
        and any(value == first[fact.name] for _, value in fact.candidates)
    }


def _readings(architecture: Architecture) -> list[Reading]:
    """Return every combination of what fits the open facts, controls included."""
    names = [fact.name for fact in architecture.open]
    return [
        Reading(
            {name: value for name, (_, value) in zip(names, chosen, strict=True)},
            ", ".join(f"{TITLES[name]} {text}" for name, (text, _) in zip(names, chosen, strict=True)),
            np.zeros(0, bool),
            np.zeros(0),
            np.zeros(0, bool),
        )
        for chosen in product(*((*fact.candidates, *fact.controls) for fact in architecture.open))
    ]


def _named(architecture: Architecture, ahead: list[Reading], tasks: list[str]) -> Architecture | None:
    """Return the architecture as names say, where images leave one reading with that among the best; else None."""
    hints = {fact.name: fact for fact in architecture.open if fact.hint is not None}
    fitting = [reading for reading in ahead if all(reading.choice[name] == fact.hint for name, fact in hints.items())]
    if not hints or len(fitting) != 1 or fitting[0].of_expert.sum() < LEAST:
        return None
    reading, settled = fitting[0], architecture
    share = f"{100 * reading.share:.1f} %"
    for name, fact in hints.items():
        origin = f"read: {fact.named}; images of {', '.join(tasks)} do not speak against it ({share})"
        settled = settled.settled({name: fact.hint}, origin)
    rest = {fact.name: reading.choice[fact.name] for fact in settled.open}
    return settled.settled(rest, _decided(reading, None, tasks))


def _behind(reading: Reading, best: Reading) -> bool:
    """Return whether a reading is surely worse than the one that recognises most images."""
    if reading.choice.get(HEADS) == best.choice.get(HEADS):
        return below(reading.correct[reading.of_expert], best.correct[best.of_expert])
    if below(reading.correct, best.correct):
        return True
    gain = best.log_probability - reading.log_probability
    return float(gain.mean()) > SURE * float(gain.std()) / math.sqrt(len(gain))


def _look(architecture: Architecture, readings: list[Reading], trials: list[Trial], start: int, count: int) -> bool:
    """Classify further images under some readings; False where there are none left."""
    found: dict[int, list[Judged]] = {}
    experts: list[np.ndarray] = []
    for trial in trials:
        rows = spread_rows(trial.data, count, start)
        if not len(rows):
            continue
        experts.append(np.full(len(rows), trial.model != "base"))
        for group in _by_config(architecture, readings):
            encoder = load_encoder(group[0][1].config, trial.weights)
            results = classify(encoder, trial.head, trial.data, rows, [settled.preprocess for _, settled in group])
            for (place, _), judged in zip(group, results, strict=True):
                found.setdefault(place, []).append(judged)
    for place, parts in found.items():
        reading = readings[place]
        reading.correct = np.concatenate([reading.correct, *(part.correct for part in parts)])
        reading.log_probability = np.concatenate([reading.log_probability, *(part.log_probability for part in parts)])
        reading.of_expert = np.concatenate([reading.of_expert, *experts])
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


def _refusal(fact: Open, why: str) -> Fault:
    fitting = ", ".join(text for text, _ in fact.candidates[:SHOWN])
    more = " …" if len(fact.candidates) > SHOWN else ""
    return Fault(
        f"The base's {TITLES[fact.name].lower()} cannot be known from its weights. Asked: {fact.tried}. What fits: "
        f"{fitting}{more}. {why}. {fact.how}.",
        fact.name,
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
