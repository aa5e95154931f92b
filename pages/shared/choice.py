"""The runs that are compared: from the address, the session, the examples or the newest runs."""

import streamlit as st

from engine.errors import EngineError
from engine.figures.compare import MOST
from pages.shared.state import RunView, examples, finished_runs, open_run

RUNS = "runs"  # the address parameter: ids of the runs compared, joined by commas
CHOSEN = "compare.runs"


def choose_runs() -> list[RunView]:
    """Let people choose; the address wins over what was chosen before, so that a copied link opens the same."""
    entries = {entry.id: entry for entry in finished_runs()}
    asked = [name for name in (st.query_params.get(RUNS) or "").split(",") if name]
    remembered = st.session_state.get(CHOSEN)
    wanted = asked or remembered
    if wanted is None:
        wanted = [entry.id for entry in examples()] if len(examples()) > 1 else list(entries)[:2]
    views = {name: view for name in dict.fromkeys(wanted[:MOST]) if (view := _open(name))}
    if len(views) < len(set(wanted)):
        st.toast("Not every run asked for is here (any more); the others are shown. At most six are compared.")
    if list(views) != remembered:
        st.session_state[CHOSEN] = list(views)
    labels = {name: f"{entry.title} · {'example' if entry.example else name[-4:]}" for name, entry in entries.items()}
    labels |= {name: f"{view.title} · {name[-4:]}" for name, view in views.items() if name not in labels}
    st.multiselect(
        "Runs compared",
        list(labels),
        format_func=labels.__getitem__,
        key=CHOSEN,
        max_selections=MOST,
        persist_state="session",
        on_change=_keep,
        placeholder="Choose finished runs",
        help="The first one is what the others are compared with. The address of this page names them.",
    )
    if views and ",".join(views) != st.query_params.get(RUNS):
        st.query_params[RUNS] = ",".join(views)
    return list(views.values())


def _keep() -> None:
    """Put what was chosen into the address."""
    if st.session_state[CHOSEN]:
        st.query_params[RUNS] = ",".join(st.session_state[CHOSEN])
    else:
        st.query_params.pop(RUNS, None)


def _open(name: str) -> RunView | None:
    try:
        return open_run(name)
    except EngineError:
        return None
