"""The numbers of a lesson: looked up in experiments and in the report of its run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import StoreError
from ..experiments import ExperimentResult
from ..report import Report
from ..rounding import rounded
from .spec import Prediction, Step

PLACE = re.compile(r"\{(-?)([a-z][a-z0-9_-]*(?:\.[A-Za-z0-9_-]+)+)(?::(\d))?\}")  # {place}, {-place}, {place:2}
RUN = "run"
MISSING = "–"


def digits_of(value: float, unit: str) -> int:
    """Return with how many digits behind the point a measured number is shown."""
    return 1 if unit == "%" else 0 if value >= 100 else 2


def places_in(text: str) -> list[str]:
    """Return the places that a text names."""
    return [match.group(2) for match in PLACE.finditer(text)]


class Numbers:
    """Everything that was measured for a lesson, by place."""

    def __init__(self, report: Report, results: Mapping[str, ExperimentResult]) -> None:
        """Bind what was measured.

        Args:
            report: of the lesson's run.
            results: experiments by name.
        """
        self._report = report.model_dump(mode="json", by_alias=True)
        self.report, self.results = report, results

    def value(self, place: str) -> float:
        """Return a number by its place: ``run.`` and a path in the report, or experiment, point and measure.

        In a report a table of tasks is averaged over those in domain, and a list is counted.

        Raises:
            StoreError: there is no such number.
        """
        head, _, rest = place.partition(".")
        found: Any = None
        if head == RUN:
            found = self._report
            for part in rest.split("."):
                found = found.get(part) if isinstance(found, dict) else None
            if isinstance(found, dict):
                found = self._mean(found)
            elif isinstance(found, list):
                found = len(found)
        elif head in self.results and rest.count(".") == 1:
            cell = self.results[head].cell(*rest.split("."))
            found = cell.mean if cell else None
        if not isinstance(found, int | float) or isinstance(found, bool):
            raise StoreError(f"The lesson asks for the number '{place}', which was not measured.")
        return float(found)

    def known(self, place: str) -> bool:
        """Return whether the number was measured."""
        try:
            self.value(place)
        except StoreError:
            return False
        return True

    def missing(self, step: Step) -> list[str]:
        """Return the places of a step's numbers that were not measured, in their order."""
        asked = [place for _, text in step.texts() for place in places_in(text)]
        asked += step.predict.places if step.predict else ()
        if step.control:
            control = step.control
            asked += [f"{control.experiment}.{at.point}.{name}" for at in control.presets for name in control.measures]
        return [place for place in dict.fromkeys(asked) if not self.known(place)]

    def fill(self, text: str) -> str:
        """Put numbers in the place of their names; one digit behind the point unless ``{place:2}`` says otherwise.

        A number that was not measured is a dash.
        """

        def shown(match: re.Match[str]) -> str:
            sign, place, digits = match.groups()
            if not self.known(place):
                return MISSING
            value = -self.value(place) if sign else self.value(place)
            return rounded(value, int(digits) if digits else 1, grouped=True)

        return PLACE.sub(shown, text)

    def decided(self, prediction: Prediction) -> bool:
        """Return whether the numbers that decide were measured."""
        return all(map(self.known, prediction.places))

    def answer(self, prediction: Prediction) -> int:
        """Return the number of the option that was measured to be right.

        Raises:
            StoreError: a number that decides was not measured.
        """
        if prediction.largest:
            values = [self.value(place) for place in prediction.largest]
            return values.index(max(values))
        value = self.value(prediction.value) - (self.value(prediction.minus) if prediction.minus else 0)
        return sum(value >= edge for edge in prediction.edges)

    def right(self, prediction: Prediction) -> list[int]:
        """Return the options that count as right: the measured one, and those that are near enough to it.

        Raises:
            StoreError: a number that decides was not measured.
        """
        best = self.answer(prediction)
        if not prediction.largest or not prediction.near:
            return [best]
        values = [self.value(place) for place in prediction.largest]
        close = [number for number, value in enumerate(values) if values[best] - value < prediction.near]
        return [best, *(number for number in close if number != best)]

    def _mean(self, table: Mapping[str, Any]) -> float | None:
        """Return the mean over in-domain tasks of a table of tasks."""
        values = [table[task] for task in self.report.tasks_of("in") if isinstance(table.get(task), int | float)]
        return sum(values) / len(values) if values else None
