"""Rows of the run table as lines of a list: what they are called, how they stand, what they gave."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from engine.catalog.titles import method_title
from engine.pipeline.kinds import all_kinds
from engine.store import Run
from engine.store.usage import references_of, size_of_artefact
from pages.shared.chrome import age, duration
from pages.shared.state import RunEntry, example_folder, is_projection, result_folder, run_title, store

COLUMNS = {
    "State": st.column_config.TextColumn(width="small"),
    "Run": st.column_config.TextColumn(width="medium"),
    "Kind": st.column_config.TextColumn(width="small"),
    "Merge": st.column_config.TextColumn(width="small"),
    "Merged": st.column_config.NumberColumn("Merged, %", format="%.1f", help="Mean accuracy, in-domain tasks"),
    "Repaired": st.column_config.NumberColumn("Repaired, %", format="%.1f", help="The best calibrator's, same tasks"),
    "H": st.column_config.NumberColumn(
        "H-score", format="%.1f", help="Merged: harmonic mean of in-domain and out-of-domain accuracy"
    ),
    "Owner": st.column_config.TextColumn(width="small"),
    "Tags": st.column_config.ListColumn(width="small"),
    "Age": st.column_config.TextColumn(width="small"),
    "Took": st.column_config.TextColumn(width="small"),
    "Storage": st.column_config.NumberColumn(
        "Storage, MB", format="%.1f", help="All that it refers to, also where other runs refer to the same"
    ),
}


def kind_title(kind: str) -> str:
    """Return what a kind of row is called."""
    return all_kinds()[kind].title if kind in all_kinds() else kind.replace("_", " ").capitalize()


def kind_choices() -> dict[str, tuple[str, ...]]:
    """Return the kinds that the list can be narrowed to, by title."""
    kinds = all_kinds()
    main = tuple(kind.name for kind in kinds.values() if not kind.minor)
    return {"Runs and other work": main, "Everything": tuple(kinds)} | {k.title: (k.name,) for k in kinds.values()}


def line_of(row: Run) -> dict[str, Any]:
    """Return one line of the table."""
    recipe = row.request.get("recipe")
    method = (recipe.get("merge") or {}).get("method", "") if isinstance(recipe, dict) else ""
    folder = result_folder(row.result) if row.state == "finished" and row.kind == "run" else None
    gone = row.state == "finished" and row.kind == "run" and folder is None
    return {
        "id": row.id,
        "State": "Result gone" if gone else row.state.capitalize(),
        "Run": run_title(row),
        "Kind": kind_title("projection" if is_projection(row) else row.kind),
        "Merge": method_title(method),
        "Owner": row.person or None,
        "Tags": row.tags,
        "Age": age(row.created),
        "Took": duration(row.elapsed) if row.started else "–",
        "Storage": storage_of(row) / 1e6 or None,
        **(summary(str(folder)) if folder else {}),
    }


def example_line(entry: RunEntry) -> dict[str, Any]:
    """Return the line of an example that comes with the app."""
    known = {"id": entry.id, "State": "Example", "Run": entry.title, "Kind": "Run", "Tags": [], "Age": "–", "Took": "–"}
    return {**known, **summary(str(example_folder(entry.id)))}


def storage_of(row: Run) -> int:
    """Return bytes of everything that an ended row refers to."""
    return 0 if row.active else _storage(str(store().root), row.id, len(row.step_keys), references_of(row))


@st.cache_data(max_entries=2000, ttl="10m", show_spinner=False)
def _storage(root: str, run: str, steps: int, _keys: Sequence[str]) -> int:
    return sum(size_of_artefact(store(), key) for key in _keys)


@st.cache_data(max_entries=500, ttl="1h", show_spinner=False)
def summary(folder: str) -> dict[str, Any]:
    """Return the averages in a report, read without checking the rest of it."""
    try:
        report = json.loads((Path(folder) / "report.json").read_bytes())
        averages, method = report["average"], report["recipe"]["merge"]["method"]
        calibrators = [name for name, part in report.get("calibrators", {}).items() if part["on"] == "merged"]
        merged = averages.get("merged", {})
        found = (averages.get(name, {}).get("in") for name in calibrators)
        repaired = [value for value in found if value is not None]
        return {
            "Merge": method_title(method),
            "Merged": merged.get("in"),
            "Repaired": max(repaired, default=None),
            "H": merged.get("h_score"),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}
