"""Experiments: what the papers claim, what comes out on this zoo, and whether a control explains it."""

from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from engine.errors import EngineError
from engine.experiments import (
    Experiment,
    ExperimentResult,
    Finding,
    Measure,
    experiment_names,
    read_experiment,
    read_result,
)
from engine.experiments.claims import effect, fits
from engine.experiments.spec import FOLDER
from engine.figures.experiment import experiment_dots
from engine.outgoing import csv_table
from engine.pipeline.viewing.by_task import ImagesRequest
from engine.store import Run
from pages.shared.chrome import age, empty_state, error_state, plain, plot, theme
from pages.shared.progress import log_view, show_progress
from pages.shared.service import ask
from pages.shared.state import store
from pages.shared.tables import draw_table

NAME = "experiment"  # the address parameter
TICK = 1.0
VERDICTS = {
    "holds here": ":green[:material/check_circle:] **holds here**",
    "seen here": ":green[:material/check:] **seen here**",
    "seen, and a control does as well": ":orange[:material/balance:] **seen, and a control does as well**",
    "no difference here": ":gray[:material/drag_handle:] **no difference here**",
    "undecided here": ":gray[:material/help:] **undecided here**",
    "opposite seen here": ":blue[:material/swap_horiz:] **opposite seen here**",
    "differs by clause": ":blue[:material/rule:] **differs by clause**",
    "not judged": ":gray[:material/remove:] **not judged**",
    "holds": ":green[:material/check_circle:] **holds here**",
    "explained by a control": ":orange[:material/balance:] **holds, but a control does as well**",
    "does not hold here": ":blue[:material/swap_horiz:] **does not hold here**",
    "cannot be judged on this zoo": ":gray[:material/help:] **cannot be judged on this zoo**",
}
OUTCOMES = {
    "yes": ":material/check: yes",
    "no": ":material/close: no",
    "unclear": "no clear difference",
    "missing": "not measured",
    "seen": ":material/check: seen",
    "opposite seen": ":material/swap_horiz: opposite seen",
}


def main() -> None:
    """Draw the list of claims with their verdicts, or one of them."""
    names = experiment_names()
    asked = st.query_params.get(NAME)
    if asked in names:
        _one(read_experiment(asked))
    else:
        _all(names)


def _all(names: list[str]) -> None:
    st.title("What the papers claim, what you see here", anchor=False)
    st.write(
        "Each claim is a set of recipes with its controls, run on the bundled zoo by the same engine as everything "
        "else. Open one to see the numbers beside the published ones, and to repeat it on your own experts."
    )
    papers: dict[str, list[Experiment]] = {}
    for spec in map(read_experiment, names):
        papers.setdefault(spec.paper, []).append(spec)
    for paper, specs in papers.items():
        st.subheader(paper.split(",")[0] + ": " + ", ".join(paper.split(", ")[1:]), anchor=False)
        for spec in specs:
            with st.container(border=True, key=f"experiments.{spec.name}"):
                _summary(spec)


def _summary(spec: Experiment) -> None:
    result, _ = latest(spec)
    with st.container(horizontal=True, wrap=False, vertical_alignment="center"):
        st.markdown(f"**{plain(spec.title)}** :gray[· {plain(spec.part)}]", width="stretch")
        st.button("Open", key=f"experiments.open.{spec.name}", on_click=_open, args=(spec.name,))
    st.write(plain(spec.claim))
    st.markdown(f"{VERDICTS[result.verdict]}: {plain(result.reason)}" if result else ":gray[Not run yet.]")


def _open(name: str | None) -> None:
    if name is None:
        st.query_params.pop(NAME, None)
    else:
        st.query_params[NAME] = name


def _one(spec: Experiment) -> None:
    st.button(
        "All experiments",
        icon=":material/arrow_back:",
        key="experiments.back",
        on_click=_open,
        args=(None,),
        type="tertiary",
    )
    st.title(plain(spec.title), anchor=False)
    st.caption(plain(f"{spec.paper}, {spec.part}"))
    st.markdown(f"**The claim.** {plain(spec.claim)}")
    row = _job(spec)
    result, made = latest(spec)
    if result is None:
        empty_state("Not run yet", "The numbers appear here. Run it below; progress is shown, and it may be cancelled.")
    else:
        _result(spec, result, made)
    if row is None:
        _again(spec)


def latest(spec: Experiment) -> tuple[ExperimentResult | None, Run | None]:
    """Return the newest result of this store, else the one that comes with the app."""
    for row in store().runs.list(kinds=("experiment",), states=("finished",), limit=50):
        folder = store().find(row.result, checksums=False) if row.request.get("name") == spec.name else None
        if folder is not None:
            try:
                found = read_result(folder)
            except EngineError:
                continue
            if fits(spec, found):
                return found, row
    found = _shipped(str(FOLDER / f"{spec.name}.json"))
    return found if found is not None and fits(spec, found) else None, None


@st.cache_resource(max_entries=64, show_spinner=False)
def _shipped(path: str) -> ExperimentResult | None:
    try:
        return read_result(Path(path))
    except EngineError:
        return None


def _result(spec: Experiment, result: ExperimentResult, made: Run | None) -> None:
    st.markdown(f"**On this zoo it** {VERDICTS[result.verdict]}: {plain(result.reason)}")
    _findings(spec, result)
    st.subheader("The numbers", anchor=False)
    there = [measure for measure in spec.measures if any(measure.name in point.cells for point in result.points)]
    if there:
        chosen = st.segmented_control(
            "Measure",
            [measure.name for measure in there],
            default=there[0].name,
            required=True,
            format_func=lambda name: next(m.title for m in there if m.name == name),
            key=f"experiments.m.{spec.name}",
            bind="query-params",
            label_visibility="collapsed",
            help="What the claim is about, or what else was measured in its runs.",
        )
        measure = next(measure for measure in there if measure.name == chosen)
        drawing = experiment_dots(spec, result, measure, theme())
        plot(drawing, key=f"experiments.figure.{spec.name}")
        st.caption(plain(f"Hollow marks are controls. {provenance(result, made, measure)}"))
        _numbers(spec.name, drawing.table)
    for point in result.points:
        if point.failed:
            st.caption(f":orange[:material/warning:] {plain(f'{point.title}: {point.failed}')}")
    if spec.published is not None:
        _published(spec)
    if spec.remark:
        st.info(plain(spec.remark), icon=":material/info:")


def _findings(spec: Experiment, result: ExperimentResult) -> None:
    for heading, control in (("What the claim comes down to", False), ("Controls", True)):
        found = [finding for finding in result.findings if finding.control == control]
        if found:
            lines = "\n".join(f"- {plain(finding.text)} {_outcome(finding)}" for finding in found)
            st.markdown(f"**{heading}**\n\n{lines}")


def _outcome(finding: Finding) -> str:
    text = f"**{OUTCOMES.get(finding.outcome, finding.outcome)}**"
    if finding.left is None or finding.right is None:
        return text
    numbers = f"{finding.left:,.4g} against {finding.right:,.4g}, difference {effect(finding)}"
    return f"{text} :gray[({numbers})]"


def _published(spec: Experiment) -> None:
    st.subheader("What was published", anchor=False)
    table = pd.DataFrame([row[1:] for row in spec.published.rows], columns=list(spec.published.columns))
    table.insert(0, "", [row[0] for row in spec.published.rows])
    draw_table(table, hide_index=True, key=f"experiments.published.{spec.name}", placeholder="–")
    st.caption(plain(f"{spec.published.zoo}; {spec.paper}, {spec.published.source}. {spec.published.note}".strip()))


@st.fragment
def _numbers(name: str, table: pd.DataFrame) -> None:
    part = st.expander(
        "Table and download", icon=":material/table_rows:", key=f"experiments.numbers.{name}", on_change="rerun"
    )
    if not part.open:
        return
    with part:
        draw_table(table, hide_index=True, key=f"experiments.table.{name}", placeholder="–")
        st.download_button(
            "Download CSV",
            lambda: csv_table(table).encode(),
            file_name=f"{name}.csv",
            mime="text/csv",
            key=f"experiments.csv.{name}",
            on_click="ignore",
        )


def provenance(result: ExperimentResult, made: Run | None, measure: Measure) -> str:
    """Return images, seeds, date and machine of a result; views on runs take fewer images than the runs."""
    low, high = result.images or (0, 0)
    if measure.view:
        seen = ImagesRequest.model_fields["images"].default
        low, high = min(low, seen), min(high, seen)
    images = f"{low:,}" if low == high else f"{low:,}–{high:,}"
    seeds = sorted({seed for point in result.points for seed in point.seeds})
    origin = "comes with the app" if made is None else f"run {made.id}, {age(made.created)}"
    return (
        f"Zoo {result.zoo}; n = {images} test images a task; protocol {result.protocol.replace('_', '-')} unless a "
        f"point says otherwise; split seed {result.split_seed}; training seeds {', '.join(map(str, seeds))}, mean ± sd"
        f"{'; quick form' if result.quick else ''}; {origin}; {result.environment.get('machine', '')}."
    )


def _again(spec: Experiment) -> None:
    st.subheader("Repeat it", anchor=False)
    with st.form(f"experiments.form.{spec.name}"):
        zoo = st.text_input(
            "Zoo",
            "mini8",
            key=f"experiments.zoo.{spec.name}",
            help="A bundled zoo's name, or the path of a zoo folder of your own.",
        )
        quick = st.toggle(
            "Quick form: fewer images, shorter training, one seed",
            True,
            key=f"experiments.quick.{spec.name}",
            help="Shows in minutes which way it goes; verdicts that ship with the app come from the long form.",
        )
        st.caption(
            plain(
                f"The whole experiment takes about {spec.minutes:g} minutes on two cores; what is in the "
                "store already is not computed again."
            )
        )
        if st.form_submit_button("Run", type="primary", icon=":material/play_arrow:"):
            request = {"name": spec.name, "zoo": zoo.strip() or "mini8", "quick": quick}
            _ask(request, spec.title)
    with st.expander("The experiment as a file", key=f"experiments.file.{spec.name}"):
        st.code((FOLDER / f"{spec.name}.yaml").read_text("utf-8"), language="yaml")
        st.caption(f"On the command line: `python -m engine experiment {spec.name}`")


def _ask(request: dict[str, Any], title: str) -> None:
    try:
        ask("experiment", request, title)
    except EngineError as error:
        st.error(plain(error), icon=":material/error:")
        return
    st.rerun()


def _job(spec: Experiment) -> Run | None:
    """Return the newest row of this experiment while it is at work, or how it ended badly."""
    rows = store().runs.list(kinds=("experiment",), limit=50)
    row = next((row for row in rows if row.request.get("name") == spec.name), None)
    if row is None or row.state == "finished":
        return None
    if row.active:
        show_progress(row, "experiments")
        return row
    if row.state == "failed":
        error_state(EngineError(row.error), "What had been computed is kept; run it again to go on.")
        with st.expander("Log", key=f"experiments.log.{spec.name}"):
            log_view(row.id)
    return None


main()
