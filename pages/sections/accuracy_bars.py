"""The bars of accuracy, and another run's as outlines around them: the baseline, in the address and in the session."""

import streamlit as st

from engine.errors import EngineError
from engine.figures import accuracy_bars
from pages.shared.causes import CLICK, task_pick
from pages.shared.chrome import age, figure, plain, theme
from pages.shared.drawn import drawn
from pages.shared.state import RunView, finished_runs, open_run

BASELINE = "baseline"  # the address parameter and, in the session, the id of the run that others are held against
NONE = ""


def draw_accuracy(run: RunView, key: str, unit: str) -> None:
    """Draw the choice of a baseline and the bars of a run; a click on a bar leads to its task's diagnosis.

    Args:
        run: the run shown.
        key: of the figure.
        unit: of its caption.
    """
    baseline = _baseline(run, key)
    around = None if baseline is None else (baseline.title, baseline.report)
    shown = () if baseline is None else (baseline.title, baseline.stamp)
    note = CLICK if baseline is None else f"{CLICK} Outlines: {baseline.title} ({baseline.id})."
    look = theme()
    drawing = drawn(run, ("accuracy", look, *shown), lambda: accuracy_bars(run.report, look, baseline=around))
    figure(drawing, key=key, run=run, unit=unit, note=note, pick=task_pick(run))


def _baseline(run: RunView, key: str) -> RunView | None:
    """Let a baseline be chosen; None where there is none, or it shares no task with the run."""
    entries = {entry.id: entry for entry in finished_runs() if entry.id != run.id}
    asked = st.query_params.get(BASELINE) or st.session_state.get(BASELINE)
    found = _open(asked) if asked and asked != run.id else None
    titles = {NONE: "No baseline"}
    for ident, entry in entries.items():
        titles[ident] = f"{entry.title} · {'example' if entry.example else f'{age(entry.created or 0)} · {ident[-4:]}'}"
    if found is not None:
        titles.setdefault(found.id, found.title)
    if len(titles) == 1:
        return None
    own = f"baseline.{key}"
    st.session_state[own] = NONE if found is None else found.id
    st.selectbox(
        "Baseline",
        list(titles),
        format_func=titles.__getitem__,
        key=own,
        width=360,
        on_change=_choose,
        args=(own,),
        help="Another run, whose accuracies stand as outlines around the bars. The address of the page names it.",
    )
    if found is None:
        return None
    _keep(found.id)
    if not set(found.report.tasks) & set(run.report.tasks):
        st.caption(plain(f"{found.title} has none of this run's tasks, so there is nothing to hold against it."))
        return None
    return found


def _open(ident: str) -> RunView | None:
    try:
        return open_run(ident)
    except EngineError:
        st.toast("The baseline is not here (any more), so none is drawn.")
        _keep(NONE)
        return None


def _choose(key: str) -> None:
    _keep(st.session_state[key])


def _keep(ident: str) -> None:
    st.session_state[BASELINE] = ident
    if not ident:
        st.query_params.pop(BASELINE, None)
    elif st.query_params.get(BASELINE) != ident:
        st.query_params[BASELINE] = ident
