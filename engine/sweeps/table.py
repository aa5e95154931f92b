"""The table of a sweep: one point a run, with averages on the evaluation images and on those it is chosen by."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from ..errors import StoreError
from ..outgoing import csv_cell
from ..recipe import Frozen
from ..report import Averages, Report

FILE = "sweep.json"
Split = Literal["validation", "adaptation"]
SPLITS = {"validation": "labelled validation images", "adaptation": "labelled adaptation images"}
AS_LISTED = "as in the table"  # of a setting that is varied


class SweepPoint(Frozen):
    """One run of a sweep. Accuracies are percentages, means over tasks and seeds."""

    number: int
    values: tuple[Any, ...]  # one a place
    title: str
    run: str = ""  # artefact key of what the run left; empty when it failed
    evaluation: dict[str, Averages] = Field(default_factory=dict)  # by state
    choice: dict[str, float] = Field(default_factory=dict)  # by state: in-domain mean on the images to choose by
    failed: str = ""  # why there is nothing


class SweepTable(Frozen):
    """All points, and which of them is best by images that are not evaluated on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    places: tuple[str, ...]
    titles: tuple[str, ...]
    points: tuple[SweepPoint, ...]
    split: Split | None = None  # what the best is chosen by
    reason: str = ""  # why nothing is chosen
    choice_images: tuple[int, int] | None = None  # least and most images a task that are chosen by
    evaluation_images: tuple[int, int] | None = None
    protocol: str = ""
    split_seed: int = 0
    seeds: tuple[int, ...] = ()

    def states(self) -> list[str]:
        """Return states that some point has, in the order of the reports."""
        return list(dict.fromkeys(state for point in self.points for state in point.evaluation))

    def best(self, state: str) -> SweepPoint | None:
        """Return the first point with the highest in-domain accuracy of a state on the images to choose by."""
        known = [point for point in self.points if point.choice.get(state) is not None]
        return max(known, key=lambda point: (point.choice[state], -point.number)) if known else None

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each point and state: places, averages, accuracy on the images to choose by, if best."""
        found = []
        for point in self.points:
            values = dict(zip(self.places, point.values, strict=True))
            for state, average in point.evaluation.items():
                best = self.best(state)
                found.append(
                    {
                        **values,
                        "state": state,
                        "in": average.within,
                        "out": average.out,
                        "h_score": average.h_score,
                        "recovered": average.recovered,
                        f"{self.split or 'choice'}_in": point.choice.get(state),
                        "best": best is not None and best.number == point.number,
                        "failed": "",
                    }
                )
            if point.failed:
                found.append({**values, "failed": point.failed})
        return found

    def to_csv(self) -> str:
        """Return the rows as CSV."""
        names = (*self.places, "state", "in", "out", "h_score", "recovered", f"{self.split or 'choice'}_in", "best")
        text = io.StringIO()
        table = csv.DictWriter(text, fieldnames=[*names, "failed"], lineterminator="\n")
        table.writeheader()
        table.writerows({name: csv_cell(value) for name, value in row.items()} for row in self.rows())
        return text.getvalue()

    def measured_on(self) -> str:
        """Return a sentence on the images, protocol and seeds that the numbers are of."""
        protocol = AS_LISTED if self._varied("probe.protocol") else self.protocol.replace("_", " ")
        split = AS_LISTED if self._varied("probe.split_seed") else self.split_seed
        seeds = AS_LISTED if self._varied("seeds") else ", ".join(map(str, self.seeds))
        return (
            f"Accuracy in percent on {span(self.evaluation_images)} evaluation images a task, protocol {protocol}, "
            f"split seed {split}, training seed{'s' if len(self.seeds) > 1 else ''} {seeds}."
        )

    def _varied(self, setting: str) -> bool:
        """Return whether points differ in a setting of the recipe, by the places that are varied."""
        return any(setting == place or setting.startswith(f"{place}.") for place in self.places)

    def provenance(self) -> str:
        """Return what the numbers were measured on, and what the best was chosen by."""
        if self.split is None:
            return (
                f"{self.measured_on()} Nothing is marked as best: {self.reason}" if self.reason else self.measured_on()
            )
        return (
            f"{self.measured_on()} The best is chosen on {span(self.choice_images)} {SPLITS[self.split]} a task, "
            "in-domain mean, never on evaluation images."
        )


def point_of(
    number: int, values: tuple[Any, ...], title: str, run: str, report: Report, choice: dict[str, float] | None = None
) -> SweepPoint:
    """Return the point that a finished run is."""
    evaluation = {state: report.average[state] for state in report.states() if state in report.average}
    return SweepPoint(number=number, values=values, title=title, run=run, evaluation=evaluation, choice=choice or {})


def measured_on(reports: Sequence[Report]) -> dict[str, Any]:
    """Return what the numbers of points were measured on, over all of them: values for a :class:`SweepTable`."""
    if not reports:
        return {}
    counts = [samples.evaluate for report in reports for samples in report.samples.values()]
    return {
        "evaluation_images": (min(counts), max(counts)) if counts else None,
        "protocol": reports[0].protocol,
        "split_seed": reports[0].split_seed,
        "seeds": tuple(dict.fromkeys(seed for report in reports for seed in report.seeds)),
    }


def span(counts: tuple[int, int] | None) -> str:
    """Return a count of images, or its range over tasks."""
    if counts is None:
        return "no"
    low, high = counts
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


def read_table(folder: Path) -> SweepTable:
    """Read what a sweep left.

    Raises:
        StoreError: there is none, or it is of another form.
    """
    try:
        return SweepTable.model_validate_json((folder / FILE).read_bytes())
    except OSError as error:
        raise StoreError(f"There is no sweep in {folder}: {error.strerror}. Run the sweep again.") from error
    except ValidationError as error:
        raise StoreError(f"The sweep in {folder.name} is of another form: {error.errors()[0]['msg']}.") from error
