"""Experiments: what the papers claim, what comes out on this zoo, and whether a control explains it."""

import re
from collections.abc import Sequence
from typing import Any, Literal

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
)
from engine.experiments.claims import EVIDENCE, NOBODY, PRACTICE, effect, sets_of, verdict_of, zoo_option
from engine.experiments.spec import FOLDER
from engine.figures.experiment import experiment_dots
from engine.pipeline.viewing.by_task import ImagesRequest
from engine.pipeline.zoos.derived import derived_names
from engine.store import Run
from engine.zoo.modalities import MODALITIES
from pages.sections.experiment_findings import beside, chosen_settings, findings, measured_on
from pages.sections.experiments_elsewhere import draw_elsewhere, draw_networks
from pages.shared.chrome import age, empty_state, error_state, numbers_of, plain, plot, theme
from pages.shared.one_of import one_of
from pages.shared.progress import log_view, show_progress
from pages.shared.results import latest, results
from pages.shared.service import ask
from pages.shared.state import store
from pages.shared.tables import draw_table

NAME = "experiment"  # the address parameter
COLUMNS = {
    "Claim": st.column_config.TextColumn("Claim", width="large"),
    "Paper": st.column_config.TextColumn("Paper", width="medium"),
    "Part": st.column_config.TextColumn("Part", width=130),
    "Verdict": st.column_config.TextColumn("Verdict", width=190),
    "Effect": st.column_config.TextColumn("Effect", width=150),
    "Does as well": st.column_config.TextColumn("Does as well", width="medium"),
    "Zoo": st.column_config.TextColumn("Zoo", width=110),
}
VERDICTS = {
    "holds here": ":green[:material/check_circle:] **holds here**",
    "seen here": ":green[:material/check:] **seen here**",
    "seen, and a control does as well": ":orange[:material/balance:] **seen, and a control does as well**",
    "no difference here": ":gray[:material/drag_handle:] **no difference here**",
    "undecided here": ":gray[:material/help:] **undecided here**",
    "opposite seen here": ":blue[:material/swap_horiz:] **opposite seen here**",
    "differs by clause": ":blue[:material/rule:] **differs by clause**",
    "not judged": ":gray[:material/remove:] **not judged**",
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
        "Each claim is a set of recipes with its controls, run by the same engine as everything else. Small networks "
        "on drawn images, and on sentences of grammars, can show a mechanism, or its absence here; they do not refute "
        "results on photographs and people's texts. The same file runs on a true zoo, which is how a claim is settled."
    )
    rows = [_row(read_experiment(name)) for name in names]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        papers = st.multiselect(
            "Papers",
            sorted({row["Paper"] for row in rows}),
            key="experiments.papers",
            bind="query-params",
            placeholder="All papers",
            help="Checks of practice are how results are come by; no paper claims them.",
        )
        verdicts = st.multiselect(
            "Verdicts",
            sorted({row["Verdict"] for row in rows}),
            key="experiments.verdicts",
            bind="query-params",
            placeholder="All verdicts",
            help="Of a claim with several clauses the weakest, where all are seen.",
        )
    shown = [
        row for row in rows if (not papers or row["Paper"] in papers) and (not verdicts or row["Verdict"] in verdicts)
    ]
    shown.sort(key=lambda row: (row["Paper"], row["Part"]))
    claims = [row for row in shown if row["section"] == "claims"]
    practice = [row for row in shown if row["section"] == "practice"]
    if claims:
        _table(claims, "all", 640)
    elif not practice:
        empty_state("No claim matches", "None of these papers has such a verdict. Take one out of the lists above.")
    st.caption(
        "Choose a row to see its picture, its clauses and its controls. Effect: the first clause's difference with its "
        "95 % interval, over training seeds and samples. Does as well: controls that come out as the claim does."
    )
    if practice:
        st.subheader(PRACTICE, anchor=False)
        st.caption(NOBODY)
        _table(practice, "practice", "content")
    draw_networks()
    draw_elsewhere()


def _table(rows: list[dict[str, str | None]], name: str, height: int | Literal["content"]) -> None:
    """Draw claims as a table whose rows open them."""
    table = pd.DataFrame(rows, columns=["Claim", "Paper", "Part", "Verdict", "Effect", "Does as well", "Zoo", "name"])
    picked = draw_table(
        table.drop(columns="name"),
        hide_index=True,
        key=f"experiments.{name}",
        column_config=COLUMNS,
        on_select="rerun",
        selection_mode="single-row",
        placeholder="–",
        height=height,
        alt=f"{len(table)} claims with paper, verdict, effect and what explains it",
    )
    for number in picked["selection"]["rows"]:
        if number < len(table):
            # at once without the filter: taken out later, as Streamlit does, it is one more step for the browser's Back
            st.switch_page("pages/experiments.py", query_params={NAME: table["name"].iloc[number]})


def _row(spec: Experiment) -> dict[str, str | None]:
    """Return a claim as a row of the table."""
    result, _ = latest(spec)
    clauses = _clauses(spec, result) if result else []
    explained = dict.fromkeys(text for finding in clauses for text in finding.explained_by)
    return {
        "Claim": spec.claim,
        "Paper": spec.paper,
        "Part": spec.part,
        "Verdict": verdict_of(result),
        "Effect": (effect(clauses[0]).lstrip("+") or None) if clauses else None,  # a sign in front would be quoted
        "Does as well": " ".join(explained) if explained else None,
        "Zoo": measured_on(result) if result else spec.zoo,
        "name": spec.name,
        "section": spec.section,
    }


def _clauses(spec: Experiment, result: ExperimentResult) -> list[Finding]:
    """Return the clauses that the verdict is of; where the paper makes none, those that are asked here."""
    found = [pair for pair in zip(spec.checks, result.findings, strict=True) if not pair[0].control]
    return [finding for check, finding in found if not check.asked] or [finding for _, finding in found]


def _back() -> None:
    st.query_params.pop(NAME, None)


def _one(spec: Experiment) -> None:
    st.button(
        "All experiments",
        icon=":material/arrow_back:",
        key="experiments.back",
        on_click=_back,
        type="tertiary",
    )
    st.title(plain(spec.title), anchor=False)
    st.caption(plain(f"{spec.paper}, {spec.part}"))
    st.markdown(f"**The claim.** {plain(spec.claim)}")
    row = _job(spec)
    every = results(spec)
    result, made = _chosen(spec, every)
    if result is None:
        empty_state(
            "Not computed yet",
            "This form of the experiment has no result here. "
            f"`python -m engine experiment {spec.name}{zoo_option(spec)}` computes it, or run it below; progress is "
            "shown, and it may be cancelled.",
        )
    else:
        _result(spec, result, made, [other for other, _ in every])
    if row is None:
        _again(spec)


def _chosen(
    spec: Experiment, every: Sequence[tuple[ExperimentResult, Run | None]]
) -> tuple[ExperimentResult | None, Run | None]:
    """Let one of several results be chosen."""
    if len(every) < 2:
        return next(iter(every), (None, None))
    return every[
        st.selectbox(
            "Result",
            range(len(every)),
            format_func=lambda place: _called(*every[place]),
            key=f"experiments.result.{spec.name}",
            bind="query-params",
            width=460,
            help="The long form is shown first, and of it the result over most sets of experts.",
        )
    ]


def _called(result: ExperimentResult, made: Run | None) -> str:
    origin = "comes with the app" if made is None else age(made.created)
    return f"{measured_on(result)}{sets_of(result)}, {origin}"


def _result(spec: Experiment, result: ExperimentResult, made: Run | None, every: Sequence[ExperimentResult]) -> None:
    st.markdown(f"{VERDICTS[result.verdict]} :gray[on {plain(measured_on(result))}]: {plain(result.reason)}")
    st.markdown(f":small[{_linked(EVIDENCE)}]")
    findings(spec, result)
    beside(spec, every)
    st.subheader("The numbers", anchor=False)
    there = [measure for measure in spec.measures if any(measure.name in point.cells for point in result.points)]
    if there:
        chosen = one_of(
            "Measure",
            [measure.name for measure in there],
            default=there[0].name,
            format_func=lambda name: next(m.title for m in there if m.name == name),
            key=f"experiments.m.{spec.name}",
            label_visibility="collapsed",
            help="What the claim is about, or what else was measured in its runs.",
        )
        measure = next(measure for measure in there if measure.name == chosen)
        drawing = experiment_dots(spec, result, measure, theme())
        plot(drawing, key=f"experiments.figure.{spec.name}")
        said = f"Hollow marks are controls. {provenance(spec, result, made, measure)}"
        st.caption(plain(said))
        numbers_of(drawing, f"experiments.{spec.name}", spec.name, said)
    for point in result.points:
        if point.failed:
            st.caption(f":orange[:material/warning:] {plain(f'{point.title}: {point.failed}')}")
    chosen_settings(spec, result)
    if spec.published is not None:
        _published(spec)
    if spec.remark:
        st.info(_linked(spec.remark), icon=":material/info:")


def _linked(text: str) -> str:
    """Return text as Markdown: what is between backticks is code, or a link with its title if it is an experiment."""
    known = experiment_names()

    def link(found: re.Match[str]) -> str:
        name = re.sub(r"\\(.)", r"\1", found[1])
        if name not in known:
            return f"`{name}`"
        return f"[{plain(read_experiment(name).title)}](experiments?experiment={name})"

    return re.sub(r"\\`(.+?)\\`", link, plain(text))


def _published(spec: Experiment) -> None:
    st.subheader("What was published", anchor=False)
    table = pd.DataFrame([row[1:] for row in spec.published.rows], columns=list(spec.published.columns))
    table.insert(0, "", [row[0] for row in spec.published.rows])
    draw_table(table, hide_index=True, key=f"experiments.published.{spec.name}", placeholder="–")
    st.caption(plain(f"{spec.published.zoo}; {spec.paper}, {spec.published.source}. {spec.published.note}".strip()))


def provenance(spec: Experiment, result: ExperimentResult, made: Run | None, measure: Measure) -> str:
    """Return images, seeds, date and machine of a result; views on runs take fewer images than the runs."""
    low, high = result.images or (0, 0)
    if measure.view:
        asked = [point.ask.get(measure.view, {}).get("images") for point in spec.points]
        seen = max(filter(None, asked), default=ImagesRequest.model_fields["images"].default)
        low, high = min(low, seen), min(high, seen)
    count = f"{low:,}" if low == high else f"{low:,}–{high:,}"
    images = f"{count} test {MODALITIES[result.kind].many}"
    seeds = sorted({seed for point in result.points for seed in point.seeds})
    drawn = f"seeds {', '.join(map(str, seeds))}" if result.sets == 1 else f"seeds: {len(seeds) // result.sets} a set"
    origin = "comes with the app" if made is None else f"run {made.id}, {age(made.created)}"
    return (
        f"Zoo {result.zoo}{sets_of(result)}; n = {images} a task; protocol {result.protocol.replace('_', '-')} unless "
        f"a point says otherwise; split seed {result.split_seed}; training {drawn}, "
        f"mean ± sd{'; quick form' if result.quick else ''}; {origin}; {result.environment.get('machine', '')}."
    )


def _again(spec: Experiment) -> None:
    st.subheader("Repeat it", anchor=False)
    with st.form(f"experiments.form.{spec.name}"):
        made = spec.zoo in derived_names()
        zoo = st.text_input(
            "Zoo",
            "" if made else spec.zoo,
            key=f"experiments.zoo.{spec.name}",
            help="A bundled zoo's name, or the path of a zoo folder of your own.",
            placeholder=f"The folder that `python -m engine zoo build {spec.zoo} --out DIR` made" if made else None,
        )
        quick = st.toggle(
            "Quick form: fewer samples, shorter training, one seed",
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
            request = {"name": spec.name, "zoo": zoo.strip() or spec.zoo, "quick": quick}
            _ask(request, spec.title)
    with st.expander("The experiment as a file", key=f"experiments.file.{spec.name}"):
        st.code((FOLDER / f"{spec.name}.yaml").read_text("utf-8"), language="yaml")
        before = f"`python -m engine zoo build {spec.zoo} --out DIR`, then " if made else ""
        st.caption(f"On the command line: {before}`python -m engine experiment {spec.name}{zoo_option(spec)}`")


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
