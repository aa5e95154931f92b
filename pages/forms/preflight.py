"""The estimate and the findings of a recipe, shown before Run is pressed. They never block it."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import streamlit as st

from engine.catalog.titles import recipe_title
from engine.errors import EngineError
from engine.pipeline.preflight.estimate import Estimate, Preflight, quick_estimate, read_preflight
from engine.recipe import Recipe
from engine.rounding import bytes_text
from engine.store import Run
from pages.shared.chrome import duration, plain
from pages.shared.people import desk
from pages.shared.service import ask_unasked
from pages.shared.state import store

ASKED = "preflight.asked"  # in the session: what was asked to be checked last (facets and the row's id)
TICK = 1.0
ICONS = {"error": ":material/error:", "warning": ":material/warning:", "note": ":material/check:"}


def preflight_line(recipe: Recipe, shown: Recipe | None) -> None:
    """Draw one line with the expected time, memory and disk, and what was found, to be opened.

    Args:
        recipe: as the form has it, valid.
        shown: recipe of the run on the page; what costs the same as it was checked by its run.
    """
    row = _check_row(recipe, shown)
    if row is not None and row.active:
        st.fragment(_waiting, run_every=TICK)(recipe, row.id)
    else:
        _draw_check(recipe, row)


def withdraw() -> None:
    """Cancel a check that has not ended: the run itself is asked for."""
    row = store().runs.find(st.session_state.get(ASKED, {}).get("row", ""))
    if row is not None and row.active:
        with suppress(EngineError):  # it has ended meanwhile
            desk().cancel(row.id)


def _waiting(recipe: Recipe, run: str) -> None:
    row = store().runs.find(run)
    if row is None or not row.active:
        st.rerun(scope="app")
    _draw_check(recipe, row)


def _check_row(recipe: Recipe, shown: Recipe | None) -> Run | None:
    """Return the row of the check of this recipe; asked for once for settings that cost something else."""
    facets = _facets(recipe)
    asked = st.session_state.get(ASKED, {})
    if asked.get("facets") == facets:
        return store().runs.find(asked["row"])
    if shown is not None and _facets(shown) == facets:
        return None
    withdraw()
    request = {"recipe": recipe.model_dump(mode="json")}
    row = ask_unasked("preflight", request, f"Check of {recipe_title(recipe)}")
    st.session_state[ASKED] = {"facets": facets, "row": row.id if row else ""}
    return row


def _facets(recipe: Recipe) -> str:
    """Return a name of what time, memory and findings depend on; real-valued parameters do not count."""

    def bare(call: Mapping[str, Any]) -> dict[str, Any]:
        return {**call, "params": {k: v for k, v in call["params"].items() if not isinstance(v, float)}}

    document = recipe.model_dump(mode="json")
    document["merge"] = bare(document["merge"])
    for part in ("transforms", "calibrators"):
        document[part] = [bare(call) for call in document[part]]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _draw_check(recipe: Recipe, row: Run | None) -> None:
    """Draw the estimate of the check, else of sizes alone; and the findings."""
    checked = _checked(row) if row is not None and row.state == "finished" else None
    same = row is not None and row.request.get("recipe") == recipe.model_dump(mode="json")
    try:  # what a check found in the store is of its own settings
        guess = checked.estimate if checked and checked.estimate and same else _quick(recipe)
    except EngineError:
        guess = None  # what is wrong with the zoo is said where it is chosen
    findings = [found for found in checked.findings if found.level != "note"] if checked else []
    grave = sum(found.level == "error" for found in findings)
    text = _line(guess, checked if same else None, row)
    if findings:
        what = f"{grave} fault{'s' * (grave != 1)}" if grave else f"{len(findings)} remark{'s' * (len(findings) != 1)}"
        text += f" · :{'red' if grave else 'orange'}[{what}]"
    st.caption(text)
    if checked is None and guess is None:
        return
    with st.expander("Before you run", icon=":material/fact_check:", key="preflight.card", expanded=bool(grave)):
        for found in findings:
            st.caption(f"{ICONS[found.level]} {plain(found.text)}")
        if checked is not None:
            notes = sum(found.level == "note" for found in checked.findings)
            st.caption(f":material/check: {notes} part{' is' if notes == 1 else 's are'} in order.")
        if guess is not None:
            listed = ", ".join(f"{name} {duration(seconds)}" for name, seconds in guess.parts.items() if seconds >= 0.5)
            st.caption(plain((f"{listed.capitalize()}. " if listed else "") + f"By {guess.basis}."))


def _line(guess: Estimate | None, checked: Preflight | None, row: Run | None) -> str:
    waiting = " · checking" if row is not None and row.active else ""
    if guess is None:
        return f":material/timer: No estimate{waiting}"
    done = checked is not None and sum(guess.parts.values()) < 0.5
    time = "All of it is in the store already" if done else f"About {duration(guess.seconds)}"
    memory, disk = bytes_text(guess.peak_memory_bytes), bytes_text(guess.disk_bytes)
    return f":material/timer: {time} · {memory} memory · {disk} disk{waiting}"


def _checked(row: Run) -> Preflight | None:
    folder = store().find(row.result, checksums=False) if row.result else None
    return read_preflight(folder) if folder is not None else None


def _quick(recipe: Recipe) -> Estimate:
    """Return sizes and known rates; kept for a while, since headers of data files are read."""
    rates = store().root / "rates"
    stamp = max((path.stat().st_mtime_ns for path in rates.glob("*.json")), default=0) if rates.is_dir() else 0
    return _kept_quick(recipe.to_json(), stamp, recipe)


@st.cache_data(max_entries=64, ttl="5m", show_spinner=False)
def _kept_quick(document: str, stamp: int, _recipe: Recipe) -> Estimate:
    return quick_estimate(_recipe, store())
