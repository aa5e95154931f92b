"""Results of an experiment: every measure at every point with its spread, and what the checks found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    SkipValidation,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)

from ..errors import StoreError
from ..recipe import Frozen
from .rights import Rights, Sheet, sheets_of

FILE = "experiment.json"
SHEETS = TypeAdapter(tuple[Sheet, ...])
POINTS = TypeAdapter(tuple[dict[str, Any], ...])
Outcome = Literal["seen", "opposite seen", "no difference", "undecided", "not measured"]  # of a check's statement
Verdict = Literal[  # of a clause and of the claim
    "holds here",
    "seen here",
    "seen, and a control does as well",
    "no difference here",
    "undecided here",
    "opposite seen here",
    "differs by clause",
    "not judged",
]
Basis = Literal["", "images", "groups", "seeds", "points", "count"]


class Cell(Frozen):
    """A measure at a point: one value a seed."""

    values: tuple[float, ...]
    mean: float
    sd: float | None = None  # over seeds; None where nothing depends on the seed or there is only one


class Tuned(Frozen):
    """The choice of validation images at a point."""

    place: str
    values: tuple[Any, ...]  # that were tried
    chosen: Any  # of several sets of experts what each of them chose

    @property
    def said(self) -> str:
        """Return the choice in words."""
        return ", ".join(map(str, self.chosen)) if isinstance(self.chosen, list | tuple) else str(self.chosen)


class PointResult(Frozen):
    """The result at a point."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: str
    title: str
    state: str
    control: bool
    run: str = ""  # key of what its first run left
    seeds: tuple[int, ...] = ()
    cells: dict[str, Cell] = Field(default_factory=dict)
    failed: str = ""  # why there is nothing
    rights: Annotated[Rights | None, SkipValidation] = Field(None, exclude=True)  # which evaluation images were right
    tuned: tuple[Tuned, ...] = ()
    split: str = ""  # the images that were tuned on


class Finding(Frozen):
    """The outcome of a check."""

    text: str
    outcome: Outcome
    left: float | None = None
    right: float | None = None
    difference: float | None = None  # left minus right; a limit that the check sets is not taken off
    sd: float | None = None  # of the difference over seeds, paired
    control: bool = False
    low: float | None = None  # the 95 % interval of the difference
    high: float | None = None
    basis: Basis = ""  # what the interval is over: images and seeds, groups of experts, seeds, points; none of a count
    verdict: Verdict | None = None  # of a clause, with its controls
    explained_by: tuple[str, ...] = ()  # objections to this clause that come out as well


class ExperimentResult(Frozen):
    """The answer of one zoo to one experiment; in its file, points with the same images share a sheet of rights."""

    schema_version: Literal[4] = 4
    name: str
    form: str  # digest of the experiment's form that was judged
    measured: str = ""  # digest of the points that were measured, whatever they are called
    measures: dict[str, str] = Field(default_factory=dict)  # name → digest of what was measured at each of them
    quick: bool
    zoo: str
    zoo_digest: str
    sets: int = 1  # of experts, by other training seeds, that are pooled in it
    kind: str = "image"  # of the zoo's data: name of a modality
    protocol: str
    split_seed: int
    images: tuple[int, int] | None  # fewest and most evaluation images of a task
    points: tuple[PointResult, ...]
    findings: tuple[Finding, ...]
    verdict: Verdict
    reason: str
    seconds: float  # of computation, whatever of it was in the store already
    environment: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_sheets(cls, document: Any) -> Any:
        """Give each point what a file's sheets keep of it."""
        if not isinstance(document, dict) or "sheets" not in document:
            return document
        told = {key: value for key, value in document.items() if key != "sheets"}
        rights: dict[str, Rights] = {}
        for sheet in SHEETS.validate_python(document["sheets"]):
            rights |= sheet.rights()
        points = POINTS.validate_python(document.get("points"))
        if strange := rights.keys() - {point.get("name") for point in points}:
            raise ValueError(f"images of '{min(strange)}', which is no point of the result")
        told["points"] = [{**point, "rights": rights.get(point.get("name"))} for point in points]
        return told

    @model_serializer(mode="wrap")
    def _with_sheets(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Put what the points' images were into sheets."""
        there = {point.name: point.rights for point in self.points if point.rights is not None}
        return {**handler(self), "sheets": [sheet.model_dump(mode="json") for sheet in sheets_of(there)]}

    def cell(self, point: str, measure: str) -> Cell | None:
        """Return a measure at a point; None where it could not be had."""
        found = next((entry for entry in self.points if entry.name == point), None)
        return found.cells.get(measure) if found else None


def read_result(path: Path) -> ExperimentResult:
    """Read a result from its file, or from the folder that it lies in.

    Raises:
        StoreError: there is none, or it is of another form.
    """
    file = path / FILE if path.is_dir() else path
    try:
        return ExperimentResult.model_validate_json(file.read_bytes())
    except OSError as error:
        raise StoreError(
            f"There is no result of an experiment in {path}: {error.strerror}. Run the experiment again."
        ) from error
    except ValidationError as error:
        raise StoreError(
            f"{file.name} holds no result as experiments have it now ({error.errors()[0]['msg']}). Give a file of "
            "`experiment NAME --out FILE`, or run the experiment again."
        ) from error
