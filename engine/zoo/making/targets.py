"""The targets that a zoo was built for, and the numbers measured of them. Free of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ...errors import ZooError
from ...recipe import Frozen, read_yaml
from ...rounding import rounded

RECORD = "record.yaml"
Number = Annotated[float, Field(allow_inf_nan=False)]


class Target(Frozen):
    """A number that a zoo was to reach, percent or points unless its name says otherwise."""

    target: str = Field(max_length=200)
    measured: Number
    least: Number | None = None
    most: Number | None = None
    met: bool

    @model_validator(mode="after")
    def _bounded(self) -> Target:
        if self.least is None and self.most is None:
            raise ValueError(f"the target '{self.target}' has no bounds; give it `least`, `most` or both")
        return self

    @property
    def aim(self) -> str:
        """Return the bounds in words, such as ``80 to 95``."""
        if self.least is not None and self.most is not None:
            return f"{self.least:g} to {self.most:g}"
        return f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"


class TargetRecord(BaseModel):
    """The record of a zoo's targets; other keys of the file are left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    split: str = Field(max_length=20)
    training_seeds: tuple[int, ...] = Field(max_length=100)  # of calibrators
    targets: tuple[Target, ...] = Field(min_length=1, max_length=100)
    beside: tuple[Target, ...] = Field((), max_length=100)  # of the project that the zoo comes with
    n: dict[str, int] = Field(min_length=1, max_length=1000)  # task → samples of the split
    zoos: tuple[dict[str, Any], ...] = Field(min_length=1, max_length=100)  # sets of experts that are averaged

    @property
    def missed(self) -> tuple[Target, ...]:
        """Return the targets that were not met."""
        return tuple(target for target in (*self.targets, *self.beside) if not target.met)

    def missed_in_words(self) -> str:
        """Return what was missed and by how much, in a sentence; empty where nothing was."""
        parts = [f"{target.target} ({rounded(target.measured)}; aim {target.aim})" for target in self.missed]
        return f"Missed: {' and '.join(parts)}." if parts else ""

    def provenance(self, many: str) -> str:
        """Return on what the numbers were measured; ``many`` is the noun of the zoo's samples."""
        low, high = min(self.n.values()), max(self.n.values())
        count = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        sets, seeds = len(self.zoos), ", ".join(map(str, self.training_seeds))
        over = f"means over {sets} sets of experts and" if sets > 1 else "one set of experts; means over"
        return (
            f"n = {count} {self.split} {many} a task; {over} training seeds {seeds} of the calibrators. "
            "Accuracies and AUROCs in percent, differences in points."
        )


def target_record(folder: Path) -> TargetRecord | None:
    """Return what a zoo's ``record.yaml`` says of its targets; None where there is none, or another kind of file."""
    path = folder / RECORD
    try:
        return TargetRecord.model_validate(read_yaml(path, ZooError, "record")) if path.is_file() else None
    except (ZooError, ValidationError):
        return None
