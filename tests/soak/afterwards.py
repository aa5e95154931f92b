"""Checks for when a soak is over: nothing lost, nothing wrong, every run ended or said why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.pipeline.executor import run_inline
from engine.pipeline.planners import plan_request
from engine.store import Run, Store

TIMES = ("timing_s", "environment", "created")
REASONS = ("WorkerDied", "DiskFull", "planning")  # of runs that may fail in a soak: what was done to them


@dataclass
class Findings:
    """Findings in numbers and in sentences; without sentences all is well."""

    facts: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def look(store: Store, journal: Path, *, again: int, aside: Path) -> Findings:
    """Look at a store that nobody uses any more.

    Args:
        store: the store.
        journal: what those who clicked wrote down.
        again: so many different runs are computed once more, undisturbed.
        aside: a folder for their store.
    """
    found = Findings()
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    rows = {row.id: row for deleted in (False, True) for row in store.runs.list(deleted=deleted, limit=1_000_000)}
    _rows(found, rows, lines)
    _answers(found, lines)
    _artefacts(found, store, rows.values())
    _undisturbed(found, store, rows.values(), again, aside)
    return found


def _rows(found: Findings, rows: dict[str, Run], lines: list[dict[str, Any]]) -> None:
    accepted = {line["run"] for line in lines if line["what"] == "accepted"}
    deleted = {line["run"] for line in lines if line["what"] == "deletes"}
    found.facts["runs accepted"] = len(accepted)
    found.facts["rows"] = dict(Counter(row.state for row in rows.values()))
    found.faults += [f"run {run} was accepted and is gone" for run in sorted(accepted - deleted - set(rows))]
    found.faults += [f"run {row.id} is still {row.state}: {row.message}" for row in rows.values() if row.active]
    failed = [row for row in rows.values() if row.state == "failed"]
    found.facts["failed"] = dict(Counter(row.error_kind for row in failed))
    found.faults += [
        f"run {row.id} failed ({row.error_kind}): {row.error}"
        for row in failed
        if not row.error or row.error_kind not in REASONS
    ]


def _answers(found: Findings, lines: list[dict[str, Any]]) -> None:
    found.facts["clicks"] = sum(line["what"] in ("did", "refused") for line in lines)
    found.facts["refused"] = dict(Counter(line["kind"] for line in lines if line["what"] == "refused"))
    found.faults += [f"{line['action']} broke: {line['text']}" for line in lines if line["what"] == "broken"]


def _artefacts(found: Findings, store: Store, rows: Iterable[Run]) -> None:
    """Read every artefact by its checksums, and look for results that are not there."""
    keys = [artefact.key for artefact in store.artefacts()]
    wrong = [key for key in keys if store.find(key) is None]
    damaged = sorted(path.name for path in (store.root / "damaged").glob("*"))
    lost = [
        row.id for row in rows if row.state == "finished" and row.deleted is None and store.find(row.result) is None
    ]
    found.facts |= {"artefacts": len(keys), "wrong": len(wrong), "set aside": len(damaged), "lost": len(lost)}
    found.faults += [f"artefact {key} is wrong" for key in wrong]
    found.faults += [f"artefact {name} was found to be wrong" for name in damaged]
    found.faults += [f"the result of the finished run {run} is gone" for run in lost]
    store.empty_trash(0)
    left = sorted(path.name for path in (store.root / "incoming").glob("*"))
    found.faults += [f"half an artefact was left behind: {name}" for name in left]
    found.faults += [f"the claim on {key} was left behind" for key in store.claims.active()]


def _undisturbed(found: Findings, store: Store, rows: Iterable[Run], again: int, aside: Path) -> None:
    """Compute some runs once more, where nothing goes wrong, and compare every number of their reports."""
    finished = {row.result: row for row in rows if row.kind == "run" and row.state == "finished"}
    there = [(key, row) for key, row in sorted(finished.items()) if store.find(key)]
    compared = there[:: max(1, len(there) // again)][:again] if there else []
    other = Store(aside, database_url=f"sqlite:///{aside / 'runs.sqlite'}")
    for key, row in compared:
        plan = plan_request("run", row.request, other)
        folder = run_inline(plan, other)
        first, second = (json.loads((at / "report.json").read_text()) for at in (store.find(key), folder))
        if plan.result != key:
            found.faults.append(f"run {row.id} and the same one undisturbed are planned as {key} and {plan.result}")
        found.faults += [
            f"run {row.id} and the same one undisturbed differ in {what}" for what in _differing(first, second)
        ]
    found.facts["compared with undisturbed ones"] = len(compared)


def _differing(one: Any, other: Any, at: str = "") -> list[str]:
    """Return where two reports differ and by what, except in what time and place put into them."""
    if isinstance(one, dict) and isinstance(other, dict) and set(one) == set(other):
        return [
            text for name in one if name not in TIMES for text in _differing(one[name], other[name], f"{at}.{name}")
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [text for index, pair in pairs for text in _differing(*pair, f"{at}[{index}]")]
    return [] if one == other else [f"{at or 'kind'}: {str(one)[:80]} and {str(other)[:80]}"]
