"""Results of experiments: those of this store, and those that come with the app."""

from pathlib import Path

import streamlit as st

from engine.errors import EngineError
from engine.experiments import Experiment, ExperimentResult, read_result
from engine.experiments.claims import SECOND, fits, shipped_path
from engine.store import Run
from pages.shared.state import store

LISTED = 200  # results of the store that are looked through


def latest(spec: Experiment) -> tuple[ExperimentResult | None, Run | None]:
    """Return the result that is shown first; None where there is none."""
    return next(iter(results(spec)), (None, None))


def results(spec: Experiment) -> list[tuple[ExperimentResult, Run | None]]:
    """Return the newest result of every zoo, of its long and of its quick form; those of an earlier form are left out.

    Long ones come first, and among these the one of most sets of experts; then those of this store.
    """
    found: dict[tuple[str, bool], tuple[ExperimentResult, Run | None]] = {}
    for row in store().runs.list(kinds=("experiment",), states=("finished",), limit=LISTED):
        folder = store().find(row.result, checksums=False) if row.request.get("name") == spec.name else None
        if folder is not None:
            try:
                result = read_result(folder)
            except EngineError:
                continue
            if fits(spec, result):
                found.setdefault((result.zoo_digest, result.quick), (result, row))
    for zoo in (spec.zoo, spec.zoo + SECOND):
        file = shipped_path(spec, zoo)
        shipped = shipped_file(file) if file is not None else None
        if shipped is None or not fits(spec, shipped):
            break  # a second set of experts stands beside the first, never in its place
        found.setdefault((shipped.zoo_digest, shipped.quick), (shipped, None))
    return sorted(found.values(), key=lambda entry: (entry[0].quick, -entry[0].sets))


def shipped_file(path: Path) -> ExperimentResult | None:
    """Return a result that comes with the app; None where there is none that can be read."""
    return _read(str(path), path.stat().st_mtime_ns) if path.is_file() else None


@st.cache_resource(max_entries=64, show_spinner=False)
def _read(path: str, modified: int) -> ExperimentResult | None:
    try:
        return read_result(Path(path))
    except EngineError:
        return None
