"""The points of a sweep as a film: the same images at every value, moved by one slider."""

import streamlit as st

from engine.errors import EngineError
from engine.pipeline.views.film import FILM, FilmRequest
from engine.store import Run
from engine.sweeps import SweepRequest, SweepTable
from engine.sweeps.frames import film_title, shows_same_images
from pages.features.film_view import FilmEntry, film_view
from pages.sections.sweep_table import run_of_point
from pages.shared.chrome import plain
from pages.shared.nouns import called, kind_of
from pages.shared.on_demand import on_demand
from pages.shared.state import RunView, open_run

TAKES = (
    "Its frames are the sweep's own runs, which are not made again: only their images are put into one map. It takes "
    "seconds."
)


def film_request(sweep: SweepRequest) -> FilmRequest | None:
    """Return the film over a sweep's place, at its values and on all its images.

    None of two places, of one value, and of a place that chooses images: a film shows the same ones at every value.
    """
    if len(sweep.settings) != 1 or len(sweep.settings[0].values) < 2 or not shows_same_images(sweep.places[0]):
        return None
    (setting,), values = sweep.settings, list(sweep.settings[0].values)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        values.sort()
    return FILM.ask(sweep.recipe, place=setting.place, values=values, images="all")


def sweep_film(row: Run, table: SweepTable) -> None:
    """Draw the film of a sweep over one place, or the button that makes it; nothing where there can be none."""
    sweep = SweepRequest.parse(row.request)
    asked, run = film_request(sweep), _run(row, table)
    if asked is None or run is None or "expert" not in run.report.accuracy:
        return
    kind, title = kind_of(run.report), film_title(sweep.recipe, asked.place)
    st.subheader(called("The same images at every value", kind), anchor=False)
    folder = on_demand(
        run,
        FILM.name,
        asked.model_dump(mode="json"),
        key=f"sweep.film.{row.id}",
        name=f"Film over {title}",
        label="Play the points as a film",
        icon=":material/movie:",
    )
    if folder is None:
        st.caption(called(TAKES, kind))
        return
    film_view(run, [FilmEntry(asked.place, title, folder, folder.name)], key=f"sweep.film.{row.id}")


def _run(row: Run, table: SweepTable) -> RunView | None:
    """Return one of the sweep's runs, for the names of tasks, classes and states."""
    for point in table.points:
        child = run_of_point(row, point)
        if child is None:
            continue
        try:
            return open_run(child.id)
        except EngineError as error:
            st.caption(plain(error))
    return None
