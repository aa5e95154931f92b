"""The runs that are compared: from the address, the session, or the run shown with an example of its zoo."""

import streamlit as st

from engine.errors import EngineError
from engine.figures.compare import MOST
from pages.shared.state import RUN, RunEntry, RunView, finished_runs, open_run

RUNS = "runs"  # the address parameter: ids of the runs compared, joined by commas
CHOSEN = "compare.runs"
LOOKED = 24  # runs that are opened to find those of the same zoo
OFFERED = "compare.offered"  # in the session: the runs that were compared without anybody's choice


def choose_runs() -> list[RunView]:
    """Let people choose; the address wins over what was chosen before, so that a copied link opens the same."""
    entries = {entry.id: entry for entry in finished_runs()}
    asked = [name for name in (st.query_params.get(RUNS) or "").split(",") if name]
    remembered = st.session_state.get(CHOSEN)
    wanted = asked or remembered
    if not asked and (remembered is None or remembered == st.session_state.get(OFFERED)):
        wanted = st.session_state[OFFERED] = _offered(list(entries.values()))
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


def _offered(entries: list[RunEntry]) -> list[str]:
    """Return the runs to begin with: the run that the pages show, and what there is of its zoo to compare it with.

    An example stands beside the other examples of its zoo; a run of one's own beside the first example, or, where
    there is none, the newest other run.
    """
    shown = st.session_state.get(RUN)
    first = (_open(shown) if shown else None) or next(filter(None, (_open(entry.id) for entry in entries)), None)
    if first is None:
        return []
    opened = [view for entry in entries[:LOOKED] if entry.id != first.id and (view := _open(entry.id))]
    alike = [view for view in opened if view.report.zoo.digest == first.report.zoo.digest]
    beside = [view for view in alike if view.example] if first.example else []
    return [view.id for view in (first, *(beside or alike[:1]))][:MOST]


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
