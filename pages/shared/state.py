"""The run that the pages show: from the address, the session, an example, or the newest finished run."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import streamlit as st

from engine.catalog.titles import recipe_title
from engine.errors import EngineError, StoreError
from engine.manifest import ASSETS
from engine.recipe import parse_recipe
from engine.report import Report, read_report
from engine.store import Run, Store

EXAMPLES = ASSETS / "examples"
RUN = "run"  # the address parameter and, in the session, the id of the run shown
PAGE = "page"  # who asked, in the run table
LISTED = 100  # finished runs offered in the switcher
TITLES = 20_000  # of runs without a name that are kept

_titles: dict[str, str] = {}  # by the run's id: what was asked for never changes


@dataclass(frozen=True)
class RunView:
    """A finished run as the pages see it."""

    id: str  # run id, or an example's name
    title: str
    folder: Path
    report: Report
    key: str | None  # artefact key in the store; None for an example
    example: bool

    @property
    def stamp(self) -> str:
        """Return a name of the folder's content, to cache by."""
        return self.key or f"{self.id}:{_modified(self.folder)}"


@dataclass(frozen=True)
class RunEntry:
    """A finished run or example that can be opened."""

    id: str
    title: str
    example: bool
    created: float | None = None  # seconds since the epoch


def store() -> Store:
    """Return the store of this app, opened once per process."""
    return _store(os.environ.get("MERGELENS_STORE", ""), os.environ.get("MERGELENS_DATABASE_URL", ""))


def current_run() -> RunView:
    """Return the run that the page shows; where there is none, an explanation, and the page ends here."""
    view = find_current()
    if view is None:
        st.subheader("No run yet")
        st.write("This view shows a finished run. Run a recipe in the lab; its result appears here.")
        st.stop()
    return view


def find_current() -> RunView | None:
    """Return the run of the address, else of the session, else the first example, else the newest finished run."""
    asked = st.query_params.get(RUN)
    remembered = st.session_state.get(RUN)
    if asked and asked != remembered:
        view = _try(asked)
        if view is None:
            st.toast("The address names a run that is not here (any more). Another one is shown.")
    else:
        view = _try(remembered) if remembered else None
    if view is None:
        view = next((found for entry in finished_runs() if (found := _try(entry.id))), None)
    if view is None:
        st.query_params.pop(RUN, None)
        return None
    show_run(view.id)
    return view


def show_run(run: str) -> None:
    """Make a run the one that pages show, here and in the address."""
    st.session_state[RUN] = run
    if st.query_params.get(RUN) != run:
        st.query_params[RUN] = run


def finished_runs() -> list[RunEntry]:
    """Return examples in their order, then finished runs, newest first."""
    rows = store().runs.list(kinds=("run",), states=("finished",), children=False, limit=LISTED)
    own = (RunEntry(row.id, run_title(row), False, row.created) for row in rows if not is_projection(row))
    return [*examples(), *own]


def is_projection(row: Run) -> bool:
    """Return whether a row is an example's run that a page asked for to get a projection of it, and no run to open."""
    return row.kind == "run" and row.requested_by == PAGE and bool(row.request.get("projection"))


def examples() -> list[RunEntry]:
    """Return the finished examples that come with the app."""
    index = EXAMPLES / "index.json"
    return list(_examples(str(index), index.stat().st_mtime_ns)) if index.is_file() else []


def example_folder(name: str) -> Path:
    """Return the folder of an example that comes with the app."""
    return EXAMPLES / name


def beside(report: Report, folder: str) -> list[RunView]:
    """Return runs that came with the app beside an example of the same zoo and experts, a report each."""
    for entry in examples():
        place = example_folder(entry.id)
        own = _report(str(place), _modified(place))
        if (own.zoo.digest, own.experts) == (report.zoo.digest, report.experts) and (place / folder).is_dir():
            found = sorted(part for part in (place / folder).iterdir() if part.is_dir())
            reports = {part: _report(str(part), _modified(part)) for part in found}
            return [RunView(p.name, recipe_title(r.recipe), p, r, None, True) for p, r in reports.items()]
    return []


def open_run(run: str) -> RunView:
    """Open a finished run or an example.

    Raises:
        StoreError: there is none, it has not finished, or what it left is no longer in the store.
    """
    for entry in examples():
        if entry.id == run:
            folder = example_folder(run)
            return RunView(run, entry.title, folder, _report(str(folder), _modified(folder)), None, True)
    row = store().runs.get(run)
    if row.state != "finished" or row.deleted:
        raise StoreError(f"Run '{run}' is {'deleted' if row.deleted else row.state}; only a finished run can be shown.")
    folder = result_folder(row.result)
    if folder is None:
        raise StoreError(f"What run '{run}' left is no longer in the store. Run its recipe again.")
    report = _report(str(folder), _modified(folder))
    return RunView(row.id, run_title(row), folder, report, row.result, False)


def samples(view: RunView) -> pd.DataFrame:
    """Return the run's table of samples; do not change it in place."""
    return _samples(str(view.folder), view.stamp)


def samples_by_seed(view: RunView) -> list[pd.DataFrame]:
    """Return the run's tables of samples, one a training seed; an example keeps the first seed's alone."""
    others = sorted((view.folder / "seeds").glob("*/samples.parquet"), key=lambda path: int(path.parent.name))
    return [samples(view), *(_samples(str(path.parent), view.stamp) for path in others)]


def scored_by_task(view: RunView) -> dict[str, set[str]]:
    """Return task → states that answered images of it, as the run's table of samples has them."""
    return _scored_by_task(str(view.folder), view.stamp)


def run_title(row: Run) -> str:
    """Return the title of a row: its name, else its recipe in one line."""
    if row.name:
        return row.name
    if row.id not in _titles:
        if len(_titles) >= TITLES:
            _titles.clear()
        try:
            _titles[row.id] = recipe_title(parse_recipe(row.request.get("recipe")))
        except EngineError:
            _titles[row.id] = row.kind.capitalize()
    return _titles[row.id]


def _try(run: str) -> RunView | None:
    try:
        return open_run(run)
    except EngineError:
        return None


def result_folder(result: str) -> Path | None:
    """Return the folder of a finished row: an artefact of the store, or the folder a command line wrote to."""
    if "/" in result or "\\" in result:
        folder = Path(result)
        return folder if (folder / "report.json").is_file() else None
    return store().find(result, checksums=False) if result else None


def _modified(folder: Path) -> int:
    try:
        return (folder / "report.json").stat().st_mtime_ns
    except OSError:
        return 0


@st.cache_resource(max_entries=4, show_spinner=False)
def _store(root: str, database: str) -> Store:
    opened = Store(root or None, database_url=database or None)
    opened.database.on_wait = lambda reason: st.toast(f"{reason}; it is waited for.")
    return opened


@st.cache_resource(max_entries=64, show_spinner=False)
def _report(folder: str, modified: int) -> Report:
    return read_report(Path(folder))


@st.cache_resource(max_entries=8, show_spinner=False)
def _samples(folder: str, stamp: str) -> pd.DataFrame:
    try:
        return pd.read_parquet(Path(folder) / "samples.parquet")
    except OSError as error:
        raise StoreError(f"The run has no table of samples ({error.strerror}). Run its recipe again.") from error


@st.cache_resource(max_entries=64, show_spinner=False)
def _scored_by_task(folder: str, stamp: str) -> dict[str, set[str]]:
    pairs = _samples(folder, stamp)[["task", "state"]].drop_duplicates()
    return {task: set(states) for task, states in pairs.groupby("task")["state"]}


@st.cache_resource(max_entries=2, show_spinner=False)
def _examples(index: str, modified: int) -> list[RunEntry]:
    try:
        document = json.loads(Path(index).read_text("utf-8"))
    except (OSError, ValueError):
        return []
    items = document.get("examples", []) if isinstance(document, dict) else document
    entries = []
    for item in items if isinstance(items, list) else []:
        item = {"name": item} if isinstance(item, str) else item
        name = item.get("name", "") if isinstance(item, dict) else ""
        if name and (Path(index).parent / name / "report.json").is_file() and Path(name).name == name:
            entries.append(RunEntry(name, str(item.get("title") or name), True))
    return entries
