"""Rates of this machine: measured by a short probe, kept in the store, used for estimates. Free of torch."""

from __future__ import annotations

import os
import platform
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from ..recipe import Frozen
from ..store import Store
from ..store.files import alone

FOLDER = "rates"


class Rates(Frozen):
    """Rates of a device, in work a second. The defaults are typical of two cores of a server."""

    device: str = "cpu"
    cores: int = 2
    read: float = 1.0e9  # bytes of a checkpoint
    arithmetic: float = 1.5e9  # bytes of float32 that are read, added and written
    matmul: float = 1.2e11  # operations of large float32 products
    encode: dict[str, float] = Field(default_factory=dict)  # operations of an encoder's forward pass, by architecture
    train: dict[str, float] = Field(default_factory=dict)  # operations of training steps, by architecture
    step: dict[str, float] = Field(default_factory=dict)  # seconds of a calibrator's training step, by method and sizes
    measured: float = 0.0  # when, in seconds since the epoch; 0 for the defaults
    batches: dict[str, int] = Field(default_factory=dict)  # images at a time by architecture, as encoding found them
    preview: dict[str, float] = Field(default_factory=dict)  # seconds of a preview, by zoo, methods and sample

    def encode_rate(self, architecture: str) -> float:
        """Return operations a second inside an encoder; small ones reach a part of what large products do."""
        return self.encode.get(architecture, 0.6 * self.matmul)

    @property
    def basis(self) -> str:
        """Say where the numbers come from, for people."""
        if not self.measured:
            return "typical rates of a small server; not measured here yet"
        return f"rates measured on this machine ({self.device}, {self.cores} cores)"


def known_rates(store: Store) -> Rates:
    """Return the rates that were measured on this machine last, else typical ones."""
    try:
        return Rates.model_validate_json(_file(store).read_bytes())
    except (OSError, ValidationError):
        return Rates(cores=os.cpu_count() or 1)


def keep_rates(store: Store, **changes: Any) -> Rates:
    """Remember rates for the next estimate; what is not given stays.

    Returns:
        The rates as they are now.
    """
    return _keep(store, lambda rates: changes)


def add_rate(store: Store, table: str, name: str, value: float) -> Rates:
    """Remember one rate beside the others of its table, also those that somebody adds at the same time.

    Args:
        store: keeps the rates of this machine.
        table: name of the field.
        name: of the rate in it.
        value: of the rate.

    Returns:
        The rates as they are now.
    """
    return _keep(store, lambda rates: {table: {**getattr(rates, table), name: value}})


def _keep(store: Store, change: Callable[[Rates], Mapping[str, Any]]) -> Rates:
    file = _file(store)
    file.parent.mkdir(parents=True, exist_ok=True)
    with alone(file.parent):
        known = known_rates(store)
        rates = known.model_copy(update=change(known))
        temporary = file.with_suffix(f".{secrets.token_hex(4)}.tmp")
        temporary.write_text(rates.model_dump_json(indent=1), "utf-8")
        temporary.replace(file)
    return rates


def _file(store: Store) -> Path:
    host = re.sub(r"[^A-Za-z0-9_.-]", "_", platform.node() or "machine")
    return store.root / FOLDER / f"{host}.json"
