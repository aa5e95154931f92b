"""Lessons: YAML files under ``assets/lessons/``, and a lecturer's own in a folder.

Texts and equations may hold numbers in the form ``{scaling.at_030.accuracy}`` (experiment, point, measure) or
``{run.average.merged.in}`` (a place in the report of the lesson's run); they are filled in from what was measured, so
that no number of a lesson is written by hand. What is said of a measured order stands in as many sentences as a
prediction has options, and the measured one is shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from ..errors import RecipeError, nearest
from ..manifest import ASSETS
from ..recipe import Frozen, explain, read_yaml

FOLDER = ASSETS / "lessons"
ENV_FOLDER = "MERGELENS_LESSONS"  # of one's own lessons, in place of the store's
OWN = "lessons"  # their folder in the store
Figure = Literal[
    "", "accuracy", "bias", "salience", "features", "scaling", "disentanglement", "points", "findings", "path"
]


class Prediction(Frozen):
    """A question with options; which one is right follows from a measured number."""

    question: str
    options: tuple[str, ...] = Field(min_length=2, max_length=5)
    value: str = ""  # a number; ``edges`` say into which option it falls
    minus: str = ""  # another number that is taken off it
    edges: tuple[float, ...] = ()
    largest: tuple[str, ...] = ()  # or: numbers, one an option; the largest is right
    near: float = Field(0, ge=0)  # with largest: options so near to it are as right, in the numbers' unit
    because: str | tuple[str, ...]  # shown with the answer; or a text for each option, of which the right one's is

    @model_validator(mode="after")
    def _decidable(self) -> Prediction:
        if bool(self.value) == bool(self.largest):
            raise ValueError("a prediction is decided either by a value with edges or by the largest of some numbers")
        if self.value and len(self.edges) != len(self.options) - 1:
            raise ValueError(f"{len(self.options)} options need {len(self.options) - 1} edges")
        if self.value and list(self.edges) != sorted(self.edges):
            raise ValueError("edges ascend")
        if self.largest and len(self.largest) != len(self.options):
            raise ValueError("one number an option is needed")
        if self.largest and (self.minus or self.edges):
            raise ValueError("`minus` and `edges` belong to a `value`; leave them out beside `largest`")
        if self.value and self.near:
            raise ValueError("`near` belongs to `largest`; leave it out beside a `value`")
        if not isinstance(self.because, str) and len(self.because) != len(self.options):
            raise ValueError(f"because is one text, or one for each of the {len(self.options)} options")
        return self

    @property
    def places(self) -> tuple[str, ...]:
        """Return the places of the numbers that decide."""
        return tuple(filter(None, (self.value, self.minus, *self.largest)))

    def because_of(self, option: int) -> str:
        """Return what is said where this option is the right one."""
        return self.because if isinstance(self.because, str) else self.because[option]


class Preset(Frozen):
    """A position of a step's control."""

    label: str
    point: str  # of the control's experiment


class Control(Frozen):
    """Something to move: presets of one setting, each a measured point of an experiment."""

    label: str
    experiment: str
    measures: tuple[str, ...] = Field(min_length=1)
    presets: tuple[Preset, ...] = Field(min_length=2, max_length=8)
    start: int = Field(0, ge=0)
    film: str = ""  # the place of the setting in the run's recipe; where there is a film over it, that is shown

    @model_validator(mode="after")
    def _starts_inside(self) -> Control:
        if self.start >= len(self.presets):
            raise ValueError(f"start counts from 0, and there are {len(self.presets)} presets")
        return self


class Step(Frozen):
    """One claim, at most one control, at most one prediction."""

    title: str
    text: str
    equation: str = ""  # LaTeX
    equation_says: str = ""  # the equation in words, for those who do not read it
    predict: Prediction | None = None
    after: str | tuple[str, ...] = ""  # shown once the prediction is made, at once where there is none
    control: Control | None = None
    figure: Figure = ""
    experiment: str = ""  # whose points or findings the figure shows
    measure: str = ""
    states: tuple[str, ...] = ()  # of the figure 'accuracy': those that a step may show; all where it names none

    @model_validator(mode="after")
    def _whole(self) -> Step:
        if not isinstance(self.after, str) and (self.predict is None or len(self.after) != len(self.predict.options)):
            raise ValueError("after is one text, or one for each option of the prediction")
        if self.figure in ("points", "findings", "path") and not self.experiment:
            raise ValueError(f"the figure '{self.figure}' needs an experiment")
        if self.figure == "points" and not self.measure:
            raise ValueError("the figure 'points' needs a measure of its experiment")
        if self.states and self.figure != "accuracy":
            raise ValueError("states are those of the figure 'accuracy'")
        return self

    def after_of(self, option: int | None) -> str:
        """Return what follows the prediction, where this option is the right one (None: not known)."""
        if isinstance(self.after, str):
            return self.after
        return "" if option is None else self.after[option]

    def texts(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield every text that may hold numbers, with its place in the step."""
        for name in ("title", "text", "equation", "equation_says"):
            yield (name,), getattr(self, name)
        yield from _each(("after",), self.after)
        if self.predict:
            yield ("predict", "question"), self.predict.question
            yield from _each(("predict", "options"), self.predict.options)
            yield from _each(("predict", "because"), self.predict.because)


class Lesson(Frozen):
    """A lesson of five to eight steps on a finished example run."""

    format: Literal[1] = 1
    name: str = Field(pattern=r"^[a-z0-9-]+$")
    order: int
    title: str
    summary: str
    run: str  # an example
    paper: str
    url: str = ""
    steps: tuple[Step, ...] = Field(min_length=5, max_length=8)


def _each(place: tuple[str | int, ...], texts: str | tuple[str, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(texts, str):
        yield place, texts
    else:
        yield from (((*place, number), text) for number, text in enumerate(texts))


def lesson_names() -> list[str]:
    """Return the lessons that come with the app, in their order."""
    return [lesson.name for lesson in sorted(map(_shipped, _files()), key=lambda lesson: lesson.order)]


def read_lesson(name: str | Path) -> Lesson:
    """Read a lesson by its name, or from a file.

    Raises:
        RecipeError: there is none, or what is wrong with it.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        names = [file.stem for file in _files()]
        if str(name) not in names:
            raise RecipeError(f"There is no lesson '{name}'. {nearest(str(name), names)}")
        return _shipped(FOLDER / f"{name}.yaml")
    return _read(path)


def _shipped(file: Path) -> Lesson:
    return _kept(str(file), file.stat().st_mtime_ns)


@cache
def _kept(path: str, modified: int) -> Lesson:
    return _read(Path(path))


def _read(path: Path) -> Lesson:
    document: Any = read_yaml(path, RecipeError, "lesson")
    try:
        return Lesson.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"The lesson {path.name} cannot be used: {explain(error, Lesson)}") from error


def own_folder(root: Path) -> Path:
    """Return the folder of one's own lessons: that of the environment, else the one in a store's folder."""
    told = os.environ.get(ENV_FOLDER)
    return Path(told).expanduser() if told else root / OWN


def own_lessons(folder: Path) -> list[Path]:
    """Return the files of lessons in a folder, by name; none where there is no folder."""
    return sorted(path for path in folder.glob("*.y*ml") if path.suffix in (".yaml", ".yml")) if folder.is_dir() else []


def _files() -> list[Path]:
    return sorted(FOLDER.glob("*.yaml"))
