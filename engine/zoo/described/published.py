"""Published accuracies beside measured ones: whether an import is true shows in their differences. Free of torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...manifest import Manifest
from ...report import Report
from ...rounding import rounded

SURE = 1.96  # standard errors
PROGRAMS = 0.5  # points; other programs resize images and round numbers otherwise
OWNERS = {"pretrained": "the pretrained model's", "expert": "the experts'"}


@dataclass(frozen=True)
class Compared:
    """One accuracy in percent, as published and as measured by a run."""

    state: str  # pretrained or expert
    task: str
    label: str
    published: float
    measured: float
    images: int  # measured on
    available: int  # test images that there are

    @property
    def difference(self) -> float:
        """Return measured less published, in points."""
        return self.measured - self.published

    @property
    def margin(self) -> float:
        """Return the points by which a true import may be off: half a point, and at 95 % what so few images explain."""
        share = min(max(self.published / 100, 0.0), 1.0)
        rest = max(self.available - self.images, 0) / max(
            self.available - 1, 1
        )  # nothing is left to chance by all images
        return PROGRAMS + 100 * SURE * math.sqrt(share * (1 - share) / max(self.images, 1) * rest)

    @property
    def agrees(self) -> bool:
        """Return whether the difference is within that margin."""
        return abs(self.difference) <= self.margin


def compare(manifest: Manifest, report: Report) -> list[Compared]:
    """Return every accuracy that was both published and measured, the pretrained model's first.

    Args:
        manifest: of the run's zoo.
        report: of the run.
    """
    if manifest.published is None:
        return []
    found = []
    for state, values in manifest.published.accuracy.items():
        for task, value in values.items():
            measured, sample = report.accuracy.get(state, {}).get(task), report.samples.get(task)
            if measured is not None and sample is not None and task in manifest.task_table:
                label = manifest.task_table[task].label
                found.append(Compared(state, task, label, value, measured, sample.evaluate, sample.available))
    return found


def in_words(rows: list[Compared]) -> str:
    """Return what a comparison says, a sentence for each state; '' where nothing was compared."""
    sentences = []
    for state, owner in OWNERS.items():
        own = [row for row in rows if row.state == state]
        if not own:
            continue
        worst = max(own, key=lambda row: abs(row.difference))
        mean = rounded(sum(row.difference for row in own) / len(own), signed=True)
        sentences.append(
            f"On average {owner} accuracies differ from the published ones by {mean} points, most on {worst.label} "
            f"({rounded(worst.difference, signed=True)}); {sum(row.agrees for row in own)} of {len(own)} agree within "
            "half a point and the error of the sample."
        )
    return " ".join(sentences)


def lines(manifest: Manifest, report: Report) -> list[str]:
    """Return the comparison for a terminal, a line each; none where nothing was published or measured."""
    rows = compare(manifest, report)
    if not rows or manifest.published is None:
        return []
    width = max(len(row.task) for row in rows) + 2
    head = f"{'':{width}}{'state':12}{'published':>11}{'measured':>10}{'difference':>12}"
    body = [
        f"{row.task:{width}}{row.state:12}{rounded(row.published, 2):>11}{rounded(row.measured, 2):>10}"
        f"{rounded(row.difference, 2, signed=True):>12}{'' if row.agrees else '  more than the sample explains'}"
        for row in rows
    ]
    return [f"Published: {manifest.published.source}", head, *body, in_words(rows)]
