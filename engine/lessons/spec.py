"""Lessons: YAML files under ``assets/lessons/``.

Texts and equations may hold numbers in the form ``{scaling.at_030.accuracy}`` (experiment, point, measure) or
``{run.average.merged.in}`` (a place in the report of the lesson's example run); they are filled in from what was
measured, so that no number of a lesson is written by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from ..errors import RecipeError, nearest
from ..manifest import ASSETS
from ..recipe import Frozen, explain, read_yaml

FOLDER = ASSETS / "lessons"


class Prediction(Frozen):
    """A question with options; which one is right follows from a measured number."""

    question: str
    options: tuple[str, ...] = Field(min_length=2, max_length=5)
    value: str = ""  # a number; ``edges`` say into which option it falls
    minus: str = ""  # another number that is taken off it
    edges: tuple[float, ...] = ()
    largest: tuple[str, ...] = ()  # or: numbers, one an option; the largest is right
    because: str  # one sentence, shown with the answer

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
        return self


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
    start: int = 0


class Step(Frozen):
    """One claim, at most one control, at most one prediction."""

    title: str
    text: str
    equation: str = ""  # LaTeX
    equation_says: str = ""  # the equation in words, for those who do not read it
    predict: Prediction | None = None
    after: str = ""  # shown once the prediction is made, at once where there is none
    control: Control | None = None
    figure: Literal["", "accuracy", "bias", "salience", "features", "points"] = ""
    experiment: str = ""  # whose points the figure shows
    measure: str = ""


class Lesson(Frozen):
    """A lesson of five to seven steps on a finished example run."""

    format: Literal[1] = 1
    name: str = Field(pattern=r"^[a-z0-9-]+$")
    order: int
    title: str
    summary: str
    run: str  # an example
    paper: str
    url: str = ""
    steps: tuple[Step, ...] = Field(min_length=5, max_length=8)


def lesson_names() -> list[str]:
    """Return the lessons in their order."""
    return [lesson.name for lesson in sorted(map(read_lesson, _files()), key=lambda lesson: lesson.order)]


def read_lesson(name: str | Path) -> Lesson:
    """Read a lesson by its name, or from a file.

    Raises:
        RecipeError: there is none, or what is wrong with it.
    """
    path = Path(name)
    if path.suffix != ".yaml":
        names = [file.stem for file in _files()]
        if str(name) not in names:
            raise RecipeError(f"There is no lesson '{name}'. {nearest(str(name), names)}")
        path = FOLDER / f"{name}.yaml"
    document: Any = read_yaml(path, RecipeError, "lesson")
    try:
        return Lesson.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"The lesson {path.name} cannot be used: {explain(error, Lesson)}") from error


def _files() -> list[Path]:
    return sorted(FOLDER.glob("*.yaml"))
