"""Findings of an import: rows for people, weights and heads for the conversion, and everything that is wrong."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ...types import Weights
from .architecture import Architecture, Fact, Fault
from .heads import BroughtHead
from .request import ImportRequest
from .sources import Source
from .tasks import FoundTask


@dataclass
class Row:
    """One file as it was recognised, for people and for the manifest."""

    role: str  # base, expert or head
    name: str
    task: str
    path: str
    layout: str
    dtype: str = ""
    tensors: int = 0
    bytes: int = 0
    distance: float | None = None  # relative distance to the base over the sampled tensors
    notes: list[str] = field(default_factory=list)


@dataclass
class Survey:
    """Everything that was found. ``models``, ``heads`` and ``tasks`` are for the conversion, the rest is JSON."""

    request: ImportRequest
    rows: list[Row] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what is in order
    architecture: Architecture | None = None
    facts: list[Fact] = field(default_factory=list)  # beyond the architecture's own
    base: Source | None = None
    sources: dict[str, Source] = field(default_factory=dict)  # of experts by name
    text: Weights | None = None  # the base's whole text encoder, or its logit scale alone
    models: dict[str, Weights] = field(default_factory=dict)  # base and experts by name
    heads: dict[str, BroughtHead] = field(default_factory=dict)  # by task
    tasks: list[FoundTask] = field(default_factory=list)
    log_scale: float | None = None
    projected: list[str] = field(default_factory=list)  # experts without a projection, which take the base's
    free: int = 0  # bytes on the target's disk

    @property
    def needed(self) -> int:
        """Return bytes that the zoo will take."""
        return sum(row.bytes for row in self.rows)

    @property
    def experts(self) -> list[Row]:
        """Return rows of experts."""
        return [row for row in self.rows if row.role == "expert"]

    @property
    def known(self) -> list[Fact]:
        """Return all facts, the architecture's first."""
        return [*(self.architecture.facts if self.architecture else ()), *self.facts]

    def to_json(self) -> dict[str, Any]:
        """Return what pages and the command line show."""
        return {
            "name": self.request.name,
            "token": self.request.token,
            "out": str(self.request.folder),
            "architecture": self.architecture.label if self.architecture else "",
            "facts": [asdict(fact) for fact in self.known],
            "rows": [asdict(row) for row in self.rows],
            "notes": self.notes,
            "warnings": self.warnings,
            "faults": [asdict(fault) for fault in self.faults],
            "bytes": self.needed,
            "free": self.free,
        }


def stored_dtype(dtype: torch.dtype, request: ImportRequest) -> torch.dtype:
    """Return the dtype in which a tensor is written."""
    wanted = None if request.dtype == "keep" else getattr(torch, request.dtype)
    return wanted if wanted is not None and dtype.is_floating_point else dtype


def size_of(weights: Weights, request: ImportRequest) -> int:
    """Return the bytes that weights will take."""
    return sum(
        math.prod(weights.shape(name)) * stored_dtype(weights.dtype(name), request).itemsize for name in weights.names
    )
