"""A preview of what the form holds: a sample measured after every change, without Run, beside the run shown."""

import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st
from safetensors.numpy import load_file
from streamlit.delta_generator import DeltaGenerator

from engine.catalog.titles import recipe_title
from engine.errors import EngineError, StoreError
from engine.figures import Drawing
from engine.figures.palette import Theme
from engine.figures.preview import NO_ACCURACY, preview_points, preview_tasks, shown_average
from engine.manifest import Manifest
from engine.pipeline.preview.request import (
    KIND,
    PATIENCE,
    PreviewRequest,
    foreseen_seconds,
    merges_alike,
    preview_request,
    read_preview,
    trained_parts,
)
from engine.recipe import Recipe
from engine.rounding import rounded
from engine.store import Run
from engine.store.people import NotAllowed
from pages.forms.recipes import differences
from pages.shared.chrome import PROTOCOLS, duration, numbers_of, plain, plot, theme
from pages.shared.nouns import called, figure_called, kind_of_zoo
from pages.shared.overtaken import overtaken
from pages.shared.people import desk
from pages.shared.service import ask, keep_service
from pages.shared.state import RunView, store
from pages.shared.zoos import zoo_manifest

STATE = "preview"  # in the session: what was asked for last, or why nothing is
DRAWING = "preview.drawing"  # in the session: the page is being drawn, which does not wait for a preview
WAIT = 2.0  # seconds that the form waits for a preview, unless the next change has come
LOOK = 0.02  # seconds between two looks meanwhile
TICK = 0.5  # seconds between two looks for one that takes longer
TRAINED = "Calibrators train, so what they do needs Run."
ANCHORS = {"pretrained": "pretrained", "against": "run shown", "merged": "this merge"}
OUTCOMES = {
    "seen": "higher",
    "opposite seen": "lower",
    "no difference": "no difference beyond half a point",
    "undecided": "undecided: the sample is too small to tell",
}


def begin() -> None:
    """Say that the whole page is drawn, so that what follows the form does not wait for a preview."""
    st.session_state[DRAWING] = True


def end() -> None:
    """Say that the form is drawn; what follows a change draws the form alone."""
    st.session_state[DRAWING] = False


def follow(
    recipe: Recipe | None, run: RunView | None, place: DeltaGenerator | None, brief: DeltaGenerator | None = None
) -> None:
    """Ask for a preview of what the form holds, in the place of the one before, and draw it.

    The form, which a change draws again, draws the preview with itself: the page need not be drawn for it.

    Args:
        recipe: as the form has it; None where it is not valid.
        run: the run on the page; what is as in its recipe has no preview.
        place: of the page, where the preview is drawn.
        brief: where its numbers alone are said, for screens on which the form covers the page.
    """
    if place is not None:
        place.empty()  # a part of a page may draw outside itself by itself only where it always does
    shown = run.report.recipe if run is not None else None
    if recipe is None or shown is None or not differences(shown, recipe):
        if st.session_state.get(STATE):
            withdraw()
            st.session_state[STATE] = {}
        return
    asked = preview_request(recipe, shown)
    name = hashlib.sha256(asked.model_dump_json().encode()).hexdigest()
    if st.session_state.get(STATE, {}).get("name") != name:
        withdraw()
        before = st.session_state.get(STATE, {}).get("result", "")
        st.session_state[STATE] = {"name": name, "result": before, "row": ""}
        st.session_state[STATE] |= _begun(asked, recipe, shown)
    if run is not None and place is not None:
        with place, st.container(border=True, key="preview.panel"):
            _panel(run, st.session_state[STATE])
        folder = _folder(st.session_state[STATE].get("result", ""))
        if brief is not None and folder is not None:
            with brief, suppress(EngineError):
                st.caption(_brief(_document(str(folder), st.session_state[STATE]["result"])))


def withdraw() -> None:
    """Cancel a preview that has not ended: another one takes its place, or the run itself is asked for."""
    row = store().runs.find(st.session_state.get(STATE, {}).get("row", ""))
    if row is not None and row.active:
        with suppress(EngineError):  # it has ended meanwhile
            desk().cancel(row.id)


def _begun(asked: PreviewRequest, recipe: Recipe, shown: Recipe) -> dict[str, Any]:
    """Ask for a preview where one is quick; returns the row's id, or what to say in its place."""
    if merges_alike(recipe, shown):
        return {"said": f"The merge is that of the run shown. {TRAINED}", "result": ""}
    if learned := trained_parts(recipe):
        return {"said": f"{' and '.join(learned)} learns from images, so there is no preview.", "result": ""}
    try:
        seconds = _foreseen(asked, zoo_manifest(recipe.zoo))
    except EngineError:
        return {"said": "The zoo cannot be read, so there is no preview.", "result": ""}
    if seconds > PATIENCE:
        return {"slow": seconds, "asked": asked.model_dump(mode="json"), "result": ""}
    return _asked(asked.model_dump(mode="json"))


def _asked(request: Mapping[str, Any]) -> dict[str, Any]:
    """Put a request into the run table; returns the row's id, or why it was refused."""
    try:
        row = ask(KIND, request, f"Preview of {recipe_title(PreviewRequest.parse(request).recipe)}")
    except NotAllowed as error:
        return {"said": f"No preview: {error}", "result": ""}
    except EngineError as error:
        return {"said": str(error), "result": ""}
    return {"row": row.id}


def _ask_slow() -> None:
    state = st.session_state[STATE]
    st.session_state[STATE] = {**state, "slow": 0.0, **_asked(state["asked"])}


def _panel(run: RunView, state: dict[str, Any]) -> None:
    """Draw what there is of a preview, after waiting for it a while; what is on the screen stays meanwhile."""
    line, row = st.empty(), _row(state)
    if row is not None and row.active and not st.session_state.get(DRAWING):
        with line:
            _said(state, row)
        row = _wait(state, row)
    if row is not None and row.state == "finished" and _folder(row.result) is not None:
        state["result"] = row.result
    elif row is not None and row.state in ("failed", "cancelled"):
        state["result"] = ""  # of the settings before
    with line.container():
        _said(state, row)
    folder = _folder(state.get("result", ""))
    if folder is not None:
        try:
            _draw(run, folder, state["result"])
        except EngineError as error:
            st.caption(plain(error))
    if row is not None and row.active:
        st.fragment(_look, run_every=TICK)(row.id)


def _row(state: Mapping[str, Any]) -> Run | None:
    return store().runs.find(state["row"]) if state.get("row") else None


def _wait(state: Mapping[str, Any], row: Run) -> Run | None:
    """Wait for a preview's end, until the next change comes or it takes long."""
    patience = time.monotonic() + WAIT
    found: Run | None = row
    while found is not None and found.active and time.monotonic() < patience and not overtaken():
        time.sleep(LOOK)
        found = _row(state)
    return found


def _look(row: str) -> None:
    """Draw the page once a preview has ended that took longer than the form waits."""
    found = store().runs.find(row)
    if found is None or not found.active:
        st.rerun()


def _said(state: Mapping[str, Any], row: Run | None) -> None:
    """Say how far the preview is, or why there is none."""
    if state.get("slow"):
        with st.container(horizontal=True, vertical_alignment="center"):
            seconds = duration(max(state["slow"], 1.0))
            st.caption(f"A preview takes about {seconds} here, so it does not follow by itself.", width="stretch")
            st.button("Preview", key="preview.ask", icon=":material/visibility:", on_click=_ask_slow)
    elif state.get("said"):
        st.caption(plain(state["said"]))
    elif row is None:
        st.caption("The preview is no longer kept. Change a setting to see one.")
    elif row.active:
        waits = f" ({plain(keep_service())})" if time.time() - row.created > 3 * PATIENCE else ""
        earlier = "; below, the settings before" if state.get("result") else ""
        st.caption(f":material/hourglass_top: Previewing{waits}{earlier}.")
    elif row.state == "failed":
        st.caption(f":orange[:material/warning:] {plain(row.error)}")
    elif row.state == "cancelled":
        st.caption("The preview was cancelled.")


def _draw(run: RunView, folder: Path, result: str) -> None:
    recipe = run.report.recipe
    kind = kind_of_zoo(recipe.zoo)
    document = _document(str(folder), result)
    st.markdown(called(_sentence(document), kind))
    points, tasks = _drawings(str(folder), result, theme())
    left, right = st.columns((5, 6))
    for place, drawing in ((left, points), (right, tasks))[: 1 if tasks.table.empty else 2]:
        figure_called(drawing.figure, kind)
        with place:
            plot(drawing, key=f"preview.{drawing.name}")
            numbers_of(drawing, f"preview.{drawing.name}", "preview")
    st.caption(plain(called(_caption(document), kind)))


def _sentence(document: Mapping[str, Any]) -> str:
    """Return the result in one sentence, in Markdown."""
    shown = shown_average(document)
    if shown is None:
        return f"**Preview.** {NO_ACCURACY} Run measures their correlations."
    domain, inside = shown
    merged = inside["merged"]
    text = f"**Preview: {_percent(merged)}** of a sample right {domain} {_range(merged)}"
    if "difference" not in inside:
        reason = document["uncompared"]
        return f"{text}." + (f" It is not compared with the run shown: {plain(reason)}" if reason else "")
    change = inside["difference"]
    points = f"{rounded(change['mean'], signed=True)} points".replace("-", "\u2212")
    return (
        f"{text}; the run shown {_percent(inside['against'])} on the same images: **{points}** "
        f"{_range(change)}, {OUTCOMES[change['outcome']]}."
    )


def _brief(document: Mapping[str, Any]) -> str:
    """Return the numbers alone, in Markdown."""
    shown = shown_average(document)
    if shown is None:
        return "Preview: no accuracy, answers are numbers"
    inside = shown[1]
    text = f"Preview **{_percent(inside['merged'])}**"
    if "difference" not in inside:
        return text
    points = f"{rounded(inside['difference']['mean'], signed=True)} points".replace("-", "\u2212")
    return f"{text}, **{points}** {_range(inside['difference'])}"


def _caption(document: Mapping[str, Any]) -> str:
    """Return the provenance: n, split, seed, map, and that none of it is a run's number."""
    used, there = ({task[name] for task in document["tasks"]} for name in ("evaluated", "available"))
    share = sum(document["map"]["explained_variance"])
    anchors = " and ".join(ANCHORS[name] for name in document["map"]["anchors"])
    differs = any("difference" in means for means in document["average"].values() if means)
    parts = [
        f"A sample of the merge alone, not the run's number: n = {_span(used)} of {_span(there)} test images a task",
        f"{PROTOCOLS[document['protocol']]}, split seed {document['split_seed']}, seed {document['seed']}",
        "95 % intervals" + (", the difference by image" if differs else ""),
        f"PCA of {anchors} ({rounded(share, 0)} % of the variance)",
        f"{rounded(document['seconds'])} s",
    ]
    if graded := [task["title"] for task in document["tasks"] if "merged" not in task]:
        parts.append(f"no accuracy of {', '.join(graded)}, where answers are numbers")
    told = (document["looked_at"], document["chance"], TRAINED)
    return " ".join(filter(None, (f"{'; '.join(parts)}.", *told)))


def _percent(found: Mapping[str, float]) -> str:
    return f"{rounded(found['mean'])}\u00a0%"


def _range(found: Mapping[str, float]) -> str:
    return f"({rounded(found['low'])} to {rounded(found['high'])})".replace("-", "\u2212")


def _span(counts: set[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _folder(result: str) -> Path | None:
    return store().find(result, checksums=False) if result else None


def _foreseen(asked: PreviewRequest, zoo: Manifest) -> float:
    rates = store().root / "rates"
    stamp = max((path.stat().st_mtime_ns for path in rates.glob("*.json")), default=0) if rates.is_dir() else 0
    return _kept_foreseen(asked.model_dump_json(), zoo.model_dump_json(), stamp, asked)


@st.cache_data(max_entries=64, ttl="5m", show_spinner=False)
def _kept_foreseen(document: str, zoo: str, stamp: int, _asked: PreviewRequest) -> float:
    return foreseen_seconds(_asked, store())


@st.cache_resource(max_entries=16, ttl="10m", show_spinner=False)
def _document(folder: str, key: str) -> dict[str, Any]:
    return read_preview(Path(folder))


@st.cache_resource(max_entries=16, ttl="10m", show_spinner=False)
def _drawings(folder: str, key: str, shade: Theme) -> tuple[Drawing, Drawing]:
    document = _document(folder, key)
    try:
        arrays: dict[str, np.ndarray] = load_file(Path(folder) / "preview.safetensors")
    except (OSError, ValueError) as error:
        raise StoreError(f"The preview cannot be read ({error}). Change a setting to see another one.") from error
    return preview_points(document, arrays, shade), preview_tasks(document, shade)
