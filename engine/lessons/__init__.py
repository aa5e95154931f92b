"""Lessons: short steps that ask for a prediction and then show what was measured. Free of torch."""

from .numbers import Numbers
from .spec import Control, Lesson, Prediction, Step, lesson_names, read_lesson

__all__ = ["Control", "Lesson", "Numbers", "Prediction", "Step", "lesson_names", "read_lesson"]
