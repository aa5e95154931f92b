"""The linked feature view: the same images in the features of every state, brushed together."""

import hashlib
from dataclasses import dataclass

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine.errors import EngineError
from engine.figures.palette import state_title
from pages.features import address, projection
from pages.features.data import COLOURS, NEEDS_ONE_TASK, Space, colour_of, faded, labels_of, read_space
from pages.features.film_view import film_view, films_of
from pages.features.images import images_coming, images_of
from pages.features.inspector import inspector
from pages.features.picks import picks_of, totals_of
from pages.features.scatter import Panel, ScatterDataError, Sentences, linked_scatter
from pages.features.texts import search
from pages.features.worklists import worklists
from pages.shared.chrome import empty_state, error_state, percent, plain, theme
from pages.shared.nouns import called, kind_of
from pages.shared.on_demand import refresh_when
from pages.shared.one_of import one_of
from pages.shared.selection import task_choice
from pages.shared.state import RunView, samples

KINDS = ("pretrained", "merged", "corrected", "expert")
SHAPES = {"pretrained": "circle", "merged": "triangle", "expert": "circle"}
WHAT = (
    "Every point is an image. The panels show the same images as the pretrained model, the merged model, a corrected "
    "one and the expert see them, in one joint projection, so that you can see where merging moves them."
)
NOT_METRIC = "2-D distances and sizes are not metric"
COMING = " The images themselves are being made ready."
MISSING = " The images themselves are not at hand."


@dataclass(frozen=True)
class Shown:
    """The states, task and colour that are shown of a space."""

    states: tuple[str, ...]
    corrected: str | None
    task: str
    colour: str


def feature_view(run: RunView, key: str, compact: bool = False) -> None:
    """Draw the linked feature view of a run.

    Args:
        run: the run shown.
        key: prefix of the widgets.
        compact: panels and caption only: of the run's films, else of whichever projection exists.
    """
    if "expert" not in run.report.accuracy:
        said = WHAT + " This run scored no images of an expert's task, so there are none."
        empty_state("No features to show", called(said, kind_of(run.report)))
        return
    films = films_of(run) if compact else []
    if films:
        film_view(run, films, key)
    else:
        with st.container():  # what the panels stay in sight of
            st.fragment(_view)(run, key, compact)


def _view(run: RunView, key: str, compact: bool) -> None:
    """Draw a fragment: a brush draws this view again and nothing else of the page."""
    bar = st.container(horizontal=True, vertical_alignment="bottom", gap="medium") if not compact else None
    try:
        found, wanted = _projection(run, key, bar)
        if found is None:
            empty_state("Not projected yet", called(WHAT, kind_of(run.report)))
            projection.compute(run, wanted, key, stale=False)
            return
        space = _space(run, found)
        shown = _default(space, run) if bar is None else _controls(run, space, key, bar)
        stale = wanted.params() != found.request.params()
        if stale:
            projection.compute(run, wanted, key, stale=True)
        _draw(run, found, space, shown, key, compact, stale)
    except (EngineError, ScatterDataError) as error:
        error_state(error)


def _projection(
    run: RunView, key: str, bar: DeltaGenerator | None
) -> tuple[projection.Found | None, projection.ProjectionRequest]:
    """Return the projection to draw and the one that is asked for; until that exists, the one drawn last."""
    if bar is None:
        found = projection.any_projection(run)
        return found, found.request if found else projection.ProjectionRequest()
    with bar:
        wanted = projection.choose(run, key)
    found = projection.locate(run, wanted)
    last = f"{key}.last.{run.id}"
    if found is not None:
        st.session_state[last] = wanted.model_dump()
    elif last in st.session_state:
        found = projection.locate(run, projection.ProjectionRequest(**st.session_state[last]))
    return found or projection.any_projection(run), wanted


def _space(run: RunView, found: projection.Found) -> Space:
    return _read_space(run, found, f"{run.stamp}:{found.key}")


@st.cache_resource(max_entries=16, ttl="6h", show_spinner=False)
def _read_space(_run: RunView, _found: projection.Found, key: str) -> Space:
    graded = [name for name, task in _run.report.tasks.items() if task.graded]
    return read_space(_found.folder, key, samples(_run), graded)


def _default(space: Space, run: RunView) -> Shown:
    """Return what is shown first: merged, the last calibrator of the recipe and the experts, coloured by correctness.

    The best calibrator would be a choice made on evaluation images.
    """
    corrected = next((state for state in reversed(space.states) if state in run.report.calibrators), None)
    states = [state for state in ("merged", corrected, "expert") if state in space.states]
    return Shown(tuple(states) or space.states[:3], corrected, "all", "correct")


def _controls(run: RunView, space: Space, key: str, bar: DeltaGenerator) -> Shown:
    """Draw widgets for panels, calibrator, task and colour."""
    calibrators = [state for state in space.states if state in run.report.calibrators]
    titles = {state: state_title(state, run.report) for state in space.states}
    there = {"corrected": bool(calibrators)}
    kinds = [kind for kind in KINDS if there.get(kind, kind in space.states)]
    with bar:
        panels = st.pills(
            "Panels",
            kinds,
            selection_mode="multi",
            default=[kind for kind in kinds if kind != "pretrained"],
            format_func=str.capitalize,
            key=f"{key}.panels",
            bind="query-params",
            persist_state="session",
            wrap=True,
            help="The states whose features are shown side by side, in one joint projection.",
        )
        corrected = calibrators[-1] if calibrators else None
        if len(calibrators) > 1:
            corrected = st.selectbox(
                "Corrected by",
                calibrators,
                len(calibrators) - 1,
                width=200,
                format_func=titles.get,
                key=f"{key}.corrected",
                bind="query-params",
                persist_state="session",
                help="The calibrator whose corrected features the panel shows.",
            )
    states = [corrected if kind == "corrected" else kind for kind in kinds if kind in panels]
    if not states:
        st.caption("No panel is chosen; the merged model and the experts are shown.")
        states = [state for state in ("merged", "expert") if state in space.states]
    task, colour = _colouring(run, space, key)
    return Shown(tuple(states), corrected, task, colour)


def _colouring(run: RunView, space: Space, key: str) -> tuple[str, str]:
    """Draw widgets for the colour and for the task that is shown."""
    options = [name for name in COLOURS if name != "sigma" or space.has("sigma")]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        colour = one_of(
            "Colour",
            options,
            format_func=COLOURS.get,
            default="correct",
            key=f"{key}.colour",
            persist_state="session",
            wrap=True,
            help="What the colour of a point says. Shift is the distance to the expert's "
            "feature, margin how surely the class wins, σ what ProbSurgery predicts of "
            "its own uncertainty.",
        )
        task = task_choice(
            run.report,
            space.tasks,
            label="Show",
            whole="All tasks",
            width=200,
            key=f"{key}.shown",
            help=f"The task whose {kind_of(run.report).many} are shown; the others are taken out of panels and lists.",
        )
    task = space.tasks[0] if len(space.tasks) == 1 else task
    if colour in NEEDS_ONE_TASK and task == "all":
        st.caption(f"{COLOURS[colour]} needs one task: choose it under Show. Until then colour is the task.")
        colour = "task"
    return task, colour


def _draw(
    run: RunView, found: projection.Found, space: Space, shown: Shown, key: str, compact: bool, stale: bool
) -> None:
    """Draw panels, caption and, in full, what is selected."""
    visible = space.shown(shown.task)
    panels = [
        Panel(
            state_title(state, run.report), SHAPES.get(state, "square"), space.points[state], _note(run, state, shown)
        )
        for state in shown.states
    ]
    # Lists stand below the panels, beside what they select, but choose before. The panels stay in sight (layout.css).
    place = st.container(key=None if compact else "features-panels")
    picks = {} if compact else picks_of(space, shown.corrected, visible)
    if not compact:
        address.follow(space, picks, key, stale=stale)
        tasks = (shown.task,) if shown.task in space.tasks else space.tasks
        judged = tuple(task for task in tasks if task not in space.graded)
        totals = _totals(run.stamp, judged, shown.corrected, run)
        worklists(space, picks, shown.corrected, visible, run.report, key, totals)
    subset = space.only(shown.task) if shown.colour in NEEDS_ONE_TASK else space
    colour = colour_of(subset, shown.states, shown.colour, run.report, theme())
    colour = faded(colour, theme()) if stale else colour
    atlas, kind = images_of(space, run.report), kind_of(run.report)
    if isinstance(atlas, Sentences) and not compact:
        search(atlas, visible, kind.many, key)
    rows = hashlib.sha256(f"{run.stamp}{space.tasks}{space.index.tobytes()}".encode("utf-8", "replace"))
    with place:
        selection = linked_scatter(
            panels,
            key=f"{key}.view.{rows.hexdigest()[:12]}",
            content_key=f"{space.key}:{'+'.join(shown.states)}",
            colour=colour,
            labels=labels_of(space, shown.states, run.report),
            thumbnails=atlas,
            visible=None if visible.all() else visible,
            selection=st.session_state.pop(f"{key}.picked", None),
            height=320 if compact else 400,
            morph=[] if compact else _morph(run, shown),
            noun=(kind.one, kind.many),
        )
        coming = atlas is None and images_coming(space, run.report)
        where = "" if atlas is not None else called(COMING if coming else MISSING, kind)
        st.caption(plain(called(_caption(found, space, visible, where), kind)))
        if coming:
            refresh_when(lambda: not images_coming(space, run.report))
    if not compact:
        chosen = [row for row in selection.indices if visible[row]]
        address.keep(chosen, space, picks, key, stale=stale)
        inspector(run, space, chosen, shown.states, atlas, f"{key}.inspector", f"{key}.picked")


@st.cache_data(max_entries=64, show_spinner=False)
def _totals(stamp: str, tasks: tuple[str, ...], corrected: str | None, _run: RunView) -> dict[str, int]:
    return totals_of(samples(_run), tasks, corrected)


def _morph(run: RunView, shown: Shown) -> list[str]:
    """Return titles of merged, corrected and expert, if two of them are shown."""
    order = ["merged", *run.report.calibrators, "expert"]
    titles = [state_title(state, run.report) for state in order if state in shown.states]
    return titles if len(titles) > 1 else []


def _note(run: RunView, state: str, shown: Shown) -> str:
    """Return the state's accuracy beside its title."""
    if shown.task != "all":
        return percent(run.report.accuracy.get(state, {}).get(shown.task))
    average = run.report.average.get(state)
    return f"{percent(average.within)} in-domain" if average and average.within is not None else ""


def _caption(found: projection.Found, space: Space, visible: np.ndarray, images: str) -> str:
    """Return the caption: method, parameters, n of N, how far to trust it, and where the images are."""
    metrics = space.document.get("metrics", {})
    parts = [projection.describe(found.request, space.document)]
    if not visible.all():
        parts.append(f"{int(visible.sum()):,} of them shown")
    if "trustworthiness" in metrics:
        parts.append(
            f"trustworthiness {metrics['trustworthiness']:.2f}, neighbour overlap {metrics['neighbour_overlap']:.2f} "
            f"(k = {metrics.get('neighbourhood', '–')})"
        )
    parts.append(NOT_METRIC)
    return "; ".join(parts) + "." + images
