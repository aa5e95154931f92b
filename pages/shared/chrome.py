"""The frame of every page: context bar, figures with their provenance and table, calm messages, colours."""

import hashlib
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal
from urllib.parse import urlencode

import pandas as pd
import streamlit as st

from engine.catalog.titles import calibrator_title, method_title, params_in_effect
from engine.errors import EngineError
from engine.figures import Drawing
from engine.figures.palette import Theme
from engine.outgoing import csv_table, latex_table
from engine.recipe import MethodCall
from engine.report import Report
from engine.rounding import rounded
from pages.shared.nouns import called, figure_called, kind_of
from pages.shared.state import RunView, finished_runs, show_run
from pages.shared.tables import draw_table

PROTOCOLS = {
    "held_out": "calibrators adapt on held-out images",
    "paper": "calibrators adapt on the scored images, without labels",
}

FONT = '"Source Sans", system-ui, sans-serif'  # the app's own, so that figures and text match

FORMAT = "chrome.format"  # in the session: the file format that figures are saved in
FORMATS = {"svg": "SVG, for print", "png": "PNG, for slides"}
PNG_SCALE = 3  # pixels of the file for each on the screen
SPARED = ["pan2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"]  # a box zooms in, a double click out again

Pick = Callable[[dict], bool]  # takes the point that is clicked; returns whether the page changes

logger = logging.getLogger(__name__)


def theme() -> Theme:
    """Return the theme that the browser shows."""
    return "dark" if st.context.theme.type == "dark" else "light"


def plain(text: object) -> str:
    """Return text from people or files as Markdown that shows exactly that text, without links or images."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|<>~$:&@/])", r"\\\1", " ".join(str(text).split()))


def draw_facts(rows: Sequence[Mapping[str, str]]) -> None:
    """Draw a few rows all to be read at once: what is long takes several lines, on a phone too."""
    st.table(pd.DataFrame(rows).map(plain).rename(columns=plain), hide_index=True)


def percent(value: float | None, digits: int = 1) -> str:
    """Return an accuracy with its unit."""
    return "–" if value is None else f"{rounded(value, digits)}\u00a0%"


def age(moment: float) -> str:
    """Return how long ago a moment was, in one unit."""
    seconds = max(time.time() - moment, 0)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now"


def duration(seconds: float) -> str:
    """Return a span of time, rounded to what matters."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole / 3600:.1f} h"


def context_bar(run: RunView) -> None:
    """Draw the run switcher and the facts that every figure below depends on."""
    entries = {entry.id: entry for entry in finished_runs()}
    labels = {
        ident: f"{entry.title} · {'example' if entry.example else f'{age(entry.created or 0)} · {ident[-4:]}'}"
        for ident, entry in entries.items()
    }
    labels.setdefault(run.id, run.title)
    place, said = st.columns((2, 3), vertical_alignment="center")
    with place:
        switcher(
            "Run shown",
            labels,
            run.id,
            key="chrome.run",
            on_choice=show_run,
            label_visibility="collapsed",
            help="Every page shows this run. The address of the page names it.",
        )
    said.caption(" · ".join(f"{name}\u00a0**{plain(value)}**" for name, value in facts(run.report)))
    for warning in run.report.warnings:
        st.caption(f":orange[:material/warning:] {plain(warning)}")


def switcher(
    label: str,
    titles: Mapping[str, str],
    shown: str,
    *,
    key: str,
    on_choice: Callable[[str], None],
    help: str,
    label_visibility: Literal["visible", "collapsed"] = "visible",
) -> None:
    """Draw a list that shows what the page shows and switches to another.

    Messages of the browser may come late, with the state of a switcher from before the page turned to something else by
    itself, which Streamlit takes for a choice: so there is a key for each thing shown, and naming it says nothing.

    Args:
        label: of the list.
        titles: what can be shown: id → title.
        shown: the id that the page shows.
        key: prefix of the widget's key.
        on_choice: told another id when one is chosen.
        help: what switching does.
        label_visibility: of the label.
    """
    own = f"{key}.{shown}"

    def choose() -> None:
        if st.session_state[own] != shown:
            on_choice(st.session_state[own])

    st.session_state[own] = shown
    st.selectbox(
        label,
        list(titles),
        format_func=titles.__getitem__,
        key=own,
        on_change=choose,
        label_visibility=label_visibility,
        help=help,
    )


def facts(report: Report) -> list[tuple[str, str]]:
    """List the choices of a run: name and value."""
    recipe = report.recipe
    found = [
        ("Zoo", report.zoo.title or report.zoo.name),
        ("Experts", str(len(report.experts))),
        ("Merge", _call(recipe.merge)),
    ]
    transforms = [_call(call) for call in recipe.transforms]
    calibrators = [calibrator_title(call.name, call.method) for call in recipe.calibrators]
    found += [("Transforms", ", ".join(transforms))] if transforms else []
    found += [("Calibrators", ", ".join(calibrators) or "none")]
    many = kind_of(report).many.capitalize()
    found += [(f"{many} a task", counts(report)), ("Split", split(report))]
    return [*found, ("Seeds" if len(report.seeds) > 1 else "Seed", ", ".join(map(str, report.seeds)))]


def counts(report: Report, tasks: Sequence[str] | None = None) -> str:
    """Return how many images of a task were scored, of how many there are."""
    chosen = [report.samples[task] for task in tasks or report.samples if task in report.samples]
    if not chosen:
        return "none"
    used, there = ({getattr(sample, name) for sample in chosen} for name in ("evaluate", "available"))
    return f"{_span(used)} of {_span(there)}"


def split(report: Report) -> str:
    """Return the protocol and the seed of the split."""
    return f"{report.protocol.replace('_', '-')}, seed {report.split_seed}"


def provenance(
    run: RunView,
    unit: str,
    tasks: Sequence[str] | None = None,
    *,
    images: bool = True,
    count: str = "",
    first_seed: bool = False,
    adapted: bool = False,
) -> str:
    """Return the line under a figure: unit, n of N, split, seeds, run; of weights alone, how many models they are of.

    ``count`` stands for n of N where a view took fewer images than the run. ``first_seed`` is set where the
    figure is of the first training seed alone, no mean over all; views, which have a count, always are. ``adapted`` is
    set where it is of what was learned, which the adaptation images decide and not those that are scored.
    """
    report, kind = run.report, kind_of(run.report)
    source = f"{'example' if run.example else 'run'} {run.id}"
    unit = called(unit, kind)
    if not images:
        return f"{unit}; weights of {len(report.experts)} experts of the zoo {report.zoo.name}; {source}"
    seeds = report.seeds[:1] if first_seed or count else report.seeds
    used = f"{count or counts(report, tasks)} test"
    if adapted and (seen := {sample.adapt for sample in report.samples.values() if sample.adapt}):
        used = f"{_span(seen)} adaptation"
    return (
        f"{unit}; n = {used} {kind.many} a task; "
        f"{called(PROTOCOLS[report.protocol], kind)}; "
        f"split seed {report.split_seed}, training seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}; "
        f"{source}"
    )


def figure(
    drawing: Drawing,
    *,
    key: str,
    run: RunView,
    unit: str,
    tasks: Sequence[str] | None = None,
    note: str = "",
    images: bool = True,
    count: str = "",
    first_seed: bool = False,
    adapted: bool = False,
    pick: Pick | None = None,
) -> None:
    """Draw a figure with its provenance, and its numbers as a table to read and to download.

    ``pick`` is called with the point of a bar or mark that is clicked; see :func:`plot`.
    """
    kind = kind_of(run.report)
    figure_called(drawing.figure, kind)
    plot(drawing, key=key, name=f"{run.id}-{drawing.name}", pick=pick)
    origin = provenance(run, unit, tasks, images=images, count=count, first_seed=first_seed, adapted=adapted)
    said = " ".join([called(note, kind), origin]).strip()
    st.caption(plain(said))
    numbers_of(drawing, key, run.id, said, run)


def plot(drawing: Drawing, *, key: str, name: str = "", pick: Pick | None = None) -> None:
    """Draw a figure alone; its camera button saves it in the format that was chosen last, SVG before that.

    Args:
        drawing: the figure.
        key: of the chart.
        name: of the saved file.
        pick: called with the point that is clicked (``x``, ``y``, ``customdata`` …), before the page is drawn again;
            returns whether that changed what the page shows.
    """
    form = st.session_state.get(FORMAT, "svg")
    image = {"format": form, "filename": name or drawing.name, "scale": PNG_SCALE if form == "png" else 1}
    drawing.figure.layout.font.family = FONT  # not by update_layout, which takes as long as half a figure
    config = {"displaylogo": False, "toImageButtonOptions": image, "modeBarButtonsToRemove": SPARED}
    shown = {"width": "stretch", "theme": None, "config": config, "alt": drawing.alt}
    if pick is None:
        st.plotly_chart(drawing.figure, key=key, **shown)
        return
    told = f"{key}.clicks"  # a new key for each click, so that a chart does not keep the last one as its selection
    own = f"{key}.{st.session_state.get(told, 0)}"
    event = st.plotly_chart(drawing.figure, key=own, on_select="rerun", selection_mode="points", **shown)
    points = event.selection.points if event else []
    if points:
        st.session_state[told] = st.session_state.get(told, 0) + 1
        if pick(dict(points[0])):
            st.rerun()


def numbers_of(
    drawing: Drawing, key: str, name: str, said: str = "", run: RunView | None = None, *, ticking: bool = False
) -> None:
    """Draw the numbers behind a figure once somebody opens them, to read and to take along.

    Args:
        drawing: the figure with its table.
        key: of the figure.
        name: begins the files' names.
        said: the caption that the numbers have in LaTeX, where the page says one.
        run: the run that they are of, whose recipe is offered too, where they are of one.
        ticking: the figure is part of a fragment that draws itself again by time. One inside of it is sent without
            what stands before it when both are drawn at once, and the browser loses the page.
    """
    draw = _numbers if ticking else st.fragment(_numbers)
    draw(drawing, key, name, said, run)


def _numbers(drawing: Drawing, key: str, name: str, said: str, run: RunView | None) -> None:
    part = st.expander("Table and download", icon=":material/table_rows:", key=f"{key}.numbers", on_change="rerun")
    if not part.open:
        return
    with part:
        draw_table(drawing.table, width="stretch", hide_index=True, key=f"{key}.table", placeholder="–")
        stem, caption = f"{name}-{drawing.name}", said or drawing.alt
        with st.container(horizontal=True):
            st.download_button(
                "Download CSV",
                lambda: csv_table(drawing.table).encode(),
                file_name=f"{stem}.csv",
                mime="text/csv",
                key=f"{key}.csv",
                on_click="ignore",
            )
            st.download_button(
                "Download LaTeX",
                lambda: latex_table(drawing.table, caption).encode(),
                file_name=f"{stem}.tex",
                mime="application/x-tex",
                key=f"{key}.tex",
                on_click="ignore",
                help="The table with this caption; it needs no package.",
            )
            if run is not None:
                st.download_button(
                    "Recipe",
                    run.report.recipe.to_yaml,
                    file_name=f"{run.id}-recipe.yaml",
                    mime="application/yaml",
                    key=f"{key}.recipe",
                    on_click="ignore",
                    help="The run's recipe as YAML; `python -m engine run` makes the run again.",
                )
        st.code(caption, language=None, wrap_lines=True)
        if link := page_link():
            st.caption("Link to this page as it is now: run, choices and what is selected.")
            st.code(link, language=None, wrap_lines=True)
        _image_format(key)


def page_link() -> str:
    """Return the address of the page with all that it holds; '' where the browser has not told it."""
    place, said = st.context.url, st.query_params
    return f"{place}?{urlencode({name: said.get_all(name) for name in said}, doseq=True)}" if place else ""


def _image_format(key: str) -> None:
    """Let the format that the camera button saves be chosen, once for all figures."""
    now = st.session_state.get(FORMAT, "svg")
    chosen = st.segmented_control(
        "The camera of figures saves",
        list(FORMATS),
        format_func=FORMATS.get,
        default=now,
        required=True,
        key=f"{key}.image.{now}",
        help="It is at the upper right of a figure when the pointer is on it.",
    )
    if chosen != now:
        st.session_state[FORMAT] = chosen
        st.rerun()  # the whole page, so that its figures save in this format


def empty_state(title: str, text: str) -> None:
    """Say what a view would show, where there is nothing to show yet."""
    with st.container(border=True):
        st.markdown(f"**{plain(title)}**")
        st.write(plain(text))


def stale_state(text: str = "Not run yet") -> None:
    """Say that what is shown does not belong to what is set."""
    st.caption(f":orange[:material/pending:] {plain(text)}")


def error_state(error: BaseException, advice: str = "") -> None:
    """Draw a failure in plain words, with an id that can be copied; never a traceback."""
    ident = error_id(error)
    if isinstance(error, EngineError):
        st.error(plain(error), icon=":material/error:")
    else:
        logger.error("Unexpected error %s", ident, exc_info=error)
        st.error("Something unexpected went wrong here. The other pages still work.", icon=":material/error:")
        advice = (
            advice or "Reload the page. If it happens again, report it with this id; the app's log has the details."
        )
    if advice:
        st.caption(plain(advice))
    st.code(ident, language=None, width="content")


def error_id(error: BaseException) -> str:
    """Return a short name for a failure, the same for the same failure."""
    return "E-" + hashlib.sha256(f"{type(error).__name__}: {error}".encode()).hexdigest()[:8]


def _call(call: MethodCall) -> str:
    symbols = {"scaling": "λ", "density": "density", "eta": "η"}
    parts = [f"{symbols[name]} {value:g}" for name, value in params_in_effect(call).items() if name in symbols]
    return " ".join([method_title(call.method), *parts])


def _span(values: set[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
