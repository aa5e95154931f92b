"""The document that a run leaves behind, the same from the pages and from the command line.

Accuracies and shares are percentages. A part that was not asked for is absent; one that could not be computed is
null, with a warning that says why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from .errors import StoreError
from .recipe import REFERENCE_STATES, SCHEMA_VERSION, Frozen, Recipe

ByTask = dict[str, float | None]


class ZooIdentity(Frozen):
    """The zoo that a run looked at."""

    name: str
    title: str = ""
    digest: str


class TaskSummary(Frozen):
    """A task as the report's reader needs it."""

    title: str
    domain: Literal["in", "out", "shifted"]  # shifted: another task's classes in other images; in no average
    classes: tuple[str, ...]
    expert: str | None = None
    others: tuple[str, ...] = ()  # further experts of it that were merged
    head: str = ""  # how its head was made, for people; '' in reports of earlier versions
    graded: bool = False  # whether its classes are grades of a number, which have no accuracy


class SampleCounts(Frozen):
    """Numbers of images of a task that took part, by split."""

    adapt: int
    evaluate: int
    validation: int = 0
    available: int  # images of the split that the evaluated ones were taken from


class Averages(Frozen):
    """Mean accuracies of a state, in percent."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    within: float | None = Field(None, alias="in")  # over in-domain tasks
    out: float | None = None  # over out-of-domain tasks
    h_score: float | None = None  # harmonic mean of the two
    recovered: float | None = None  # percent of the gap between merged and experts that is closed


class BiasParts(Frozen):
    """Distances between a state's features and the expert's, on the evaluation images."""

    l1: ByTask = Field(default_factory=dict)
    l2: ByTask = Field(default_factory=dict)
    cosine: ByTask = Field(default_factory=dict)
    cka: ByTask = Field(default_factory=dict)
    l1_by_class: dict[str, tuple[float | None, ...]] = Field(default_factory=dict)


class SaliencePart(Frozen):
    """LwPTV salience of every layer for every expert (Eq. 5), whatever the recipe's transforms."""

    layers: tuple[str, ...]
    parameters: tuple[int, ...]
    score: dict[str, tuple[float, ...]]
    eta: float
    mask: dict[str, tuple[bool, ...]]
    shared_mask: tuple[bool, ...]
    kept_layers: int
    kept_parameters_percent: float
    kept_megabytes: float
    applied: bool  # whether the recipe pruned with this mask


class MergedPart(Frozen):
    """Facts of the merged model."""

    kind: Literal["static", "per_task", "per_sample"]
    needs_task_id: bool = False
    extra_parameters: int = 0
    extra_bits: int = 0
    details: dict[str, Any] = Field(default_factory=dict)


class CalibratorPart(Frozen):
    """Cost of a calibrator and course of its training (first seed)."""

    method: str
    on: Literal["merged", "pretrained"]
    parameters: int
    needs_task_id: bool = True
    diverged_at: int | None = None
    curve_columns: tuple[str, ...] = ()  # step, loss, then accuracy and L1 bias on both splits
    curve: tuple[tuple[float | None, ...], ...] = ()
    task_curves: dict[str, tuple[tuple[float | None, ...], ...]] = Field(default_factory=dict)  # same columns, by task
    merging: dict[str, Any] = Field(default_factory=dict)  # learned coefficients by expert, where it learned any


class Report(Frozen):
    """The stable face of a run."""

    schema_version: Literal[1] = SCHEMA_VERSION
    status: Literal["finished"] = "finished"
    warnings: tuple[str, ...] = ()
    recipe: Recipe
    identity: str
    zoo: ZooIdentity
    tasks: dict[str, TaskSummary]
    experts: tuple[str, ...]
    samples: dict[str, SampleCounts]
    protocol: Literal["held_out", "paper"]
    split_seed: int
    seeds: tuple[int, ...]
    accuracy: dict[str, ByTask]
    accuracy_sd: dict[str, ByTask] = Field(default_factory=dict)
    average: dict[str, Averages]
    bias: dict[str, BiasParts] = Field(default_factory=dict)
    salience: SaliencePart | None = None
    merged: MergedPart
    calibrators: dict[str, CalibratorPart] = Field(default_factory=dict)
    timing_s: dict[str, float] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)

    def states(self) -> list[str]:
        """Return the states in the order they are shown in: pretrained, merged, calibrators, references, expert."""
        first = [name for name in ("pretrained", "merged") if name in self.accuracy]
        last = [name for name in (*REFERENCE_STATES, "expert") if name in self.accuracy]
        return [*first, *self.calibrators, *last]

    def tasks_of(self, domain: Literal["in", "out", "shifted"]) -> list[str]:
        """Return task names of one domain, in the zoo's order."""
        return [name for name, task in self.tasks.items() if task.domain == domain]


def read_report(folder: Path) -> Report:
    """Read a run's report.

    Raises:
        StoreError: there is none, or it is of another schema.
    """
    try:
        return Report.model_validate_json((folder / "report.json").read_bytes())
    except OSError as error:
        raise StoreError(f"There is no report in {folder}: {error.strerror}. Choose the folder of a run.") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"The report in {folder.name} is of another form: '{place}': {first['msg']}.") from error


def schema_json() -> str:
    """Render the report's JSON schema, as exported to ``assets/report.schema.json``."""
    return json.dumps(Report.model_json_schema(), indent=1, sort_keys=True) + "\n"
