"""A run in one sentence and a few numbers."""

import streamlit as st

from engine.catalog import MERGE_METHODS
from engine.catalog.titles import method_title
from engine.figures import state_title
from engine.figures.diagnosis.lost import worst_task
from engine.figures.drawing import task_titles
from engine.report import Report
from engine.rounding import rounded
from pages.features.address import LIST
from pages.features.picks import BROKEN
from pages.shared.causes import address
from pages.shared.chrome import percent, plain
from pages.shared.nouns import called, kind_of
from pages.shared.state import RUN, RunView

WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
NOTICEABLE = 0.5  # points below which a difference is not called one
MODELS = {
    "static": "one model",
    "per_task": "a model that is told the task",
    "per_sample": "a model that mixes its weights for every image",
}
NAMED = 3  # calibrators named one by one


def headline(report: Report) -> str:
    """Return the run in one or two sentences of Markdown, with its own numbers in the colours of the states."""
    experts, merged = _mean(report, "expert"), _mean(report, "merged")
    calls = (*report.recipe.transforms, report.recipe.merge)
    method = ", then ".join(plain(method_title(call.method)) for call in calls)
    count = _word(len(report.experts)).capitalize()
    if experts is None or merged is None:
        return f"{count} experts, merged by {method}. Without images and heads there is no accuracy to show."
    model = called(MODELS[report.merged.kind], kind_of(report))
    verb = "keeps" if merged < experts else "reaches"
    pretrained = _mean(report, "pretrained")
    harm = pretrained is not None and merged < pretrained - NOTICEABLE
    less = f", less than the pretrained model's {percent(pretrained)}" if harm else ""
    repaired = _repaired(report, merged)
    start = f"{count} experts reach **{percent(experts)}** on their own tasks. Merged by {method}"
    if any(task.others for task in report.tasks.values()):
        first = f"The first expert of each task reaches **{percent(experts)}** on it"
        start = f"{first}. All {count.lower()} merged by {method}"
    return f"{start}, {model} {verb} :orange[**{percent(merged)}**]{less}" + (f"; {repaired}." if repaired else ".")


def metrics(report: Report) -> None:
    """Draw mean in-domain accuracy of every state, each with the difference that matters for it."""
    shown = [state for state in report.states() if _mean(report, state) is not None]
    if not shown:
        return
    with st.grid("auto", min_column_width=124, gap="xsmall"):
        for state in shown:
            value = _mean(report, state)
            reference, words = _reference(report, state)
            st.metric(
                "Experts" if state == "expert" else plain(state_title(state, report)),
                percent(value),
                words if reference is None else rounded(value - reference, signed=True),
                delta_color="off" if reference is None else "normal",
                delta_arrow="off" if reference is None else "auto",
                delta_description=None if reference is None else words,
                help=_help(report, state),
                height="stretch",
            )
    outside = report.tasks_of("out")
    if outside:
        named = [(state, report.average[state].out) for state in shown if report.average[state].out is not None]
        said = ", ".join(f"{plain(state_title(state, report)).lower()} {percent(value)}" for state, value in named)
        tasks = "one task" if len(outside) == 1 else f"{_word(len(outside))} tasks"
        st.caption(f"On {tasks} that no expert was tuned on: {said}.")


def questions(run: RunView) -> None:
    """Draw questions that the run answers, each a link to where it does."""
    report, worst = run.report, worst_task(run.report)
    listed: list[tuple[str, str, dict[str, str]]] = []
    if worst is not None:
        change = report.accuracy["merged"][worst] - report.accuracy["expert"][worst]
        title, asked = plain(task_titles(report)[worst]), address(run, worst)
        if change <= -NOTICEABLE:
            listed.append(("diagnose", f"Why does {title} lose {rounded(-change, 0)} points?", asked))
        listed.append(("diagnose", f"How far did the features of {title} drift, and from which block on?", asked))
        listed.append(("diagnose", f"What would help {title}, and whom would it harm?", asked))
    if report.salience is not None:
        listed.append(("salience", "Which layer matters most to an expert?", {RUN: run.id}))
    last = next(iter(reversed([name for name, part in report.calibrators.items() if part.on == "merged"])), None)
    if last is not None:
        broken = f"Which {kind_of(report).many} did {plain(state_title(last, report))} break?"
        listed.append(("representations", broken, {RUN: run.id, LIST: BROKEN}))
    listed.append(("learn", "What is going on here? Lessons in short steps", {}))
    with st.container(horizontal=True, gap="small"):
        for page, question, asked in listed:
            st.page_link(f"pages/{page}.py", label=question, icon=":material/arrow_forward:", query_params=asked)


def _repaired(report: Report, merged: float) -> str:
    """Return a clause on what the calibrators of the merged model achieve."""
    found = [
        (plain(state_title(name, report)), value)
        for name, part in report.calibrators.items()
        if part.on == "merged" and (value := _mean(report, name)) is not None
    ]
    if len(found) > NAMED:
        low, high = (percent(pick(value for _, value in found)) for pick in (min, max))
        return f"{_word(len(found))} calibrators bring it to between :blue[**{low}**] and :blue[**{high}**]"
    phrases, last = [], ""
    for name, value in found:
        verb = _verb(value - merged)
        words = "to" if verb == last == "repairs it to" else verb
        phrases.append(f"{name} {words} :blue[**{percent(value)}**]")
        last = verb
    return ", ".join(phrases)


def _verb(gain: float) -> str:
    if abs(gain) < NOTICEABLE:
        return "leaves it at"
    return "repairs it to" if gain > 0 else "takes it down to"


def _reference(report: Report, state: str) -> tuple[float | None, str]:
    """Return the value that a state is compared with, and the words for it."""
    if state == "merged":
        return _mean(report, "expert"), "vs experts"
    if state in report.calibrators:
        on = report.calibrators[state].on
        return _mean(report, on), f"vs {on}"
    words = {"pretrained": "common start", "expert": "one model a task", "multitask": "trained jointly"}
    return None, (words | {"kd4mtl": "trained jointly, imitating experts"})[state]


def _help(report: Report, state: str) -> str:
    """Return what a state is, and for a calibrator what it cost."""
    texts = {
        "pretrained": "The base model that all experts started from, with each task's classification head.",
        "merged": what_merged_is(report),
        "multitask": "One encoder trained on all tasks together, as an upper baseline.",
        "kd4mtl": "One encoder trained on all tasks together while it imitates the experts' features.",
        "expert": "Each task with the expert that was tuned on it.",
    }
    if state not in report.calibrators:
        return texts[state]
    part = report.calibrators[state]
    recovered = report.average[state].recovered
    closed = f" It closes {recovered:.0f} % of the gap between merged and experts." if recovered is not None else ""
    return f"The {part.on} model with its features corrected; {part.parameters:,} added parameters.{closed}"


def what_merged_is(report: Report) -> str:
    """Return the merged model, and what learning it took, in one sentence."""
    row = MERGE_METHODS.get(report.recipe.merge.method)
    made = {
        "static": "One encoder made of all experts' weights",
        "per_task": "An encoder for each task, made of shared weights and a little of its own",
        "per_sample": "An encoder whose weights a router mixes for every image",
    }[report.merged.kind]
    trained = {"": "nothing was trained", "router": "only the router was trained"}
    learned = trained.get(row.learns, "what it learned, it learned from images without labels") if row else trained[""]
    if row and "validation" in row.needs:
        learned = f"{'learned' if row.learns == 'mask' else 'chosen by accuracy'} on labelled validation images"
    return called(f"{made}; {learned}.", kind_of(report))


def _mean(report: Report, state: str) -> float | None:
    average = report.average.get(state)
    return average.within if average else None


def _word(number: int) -> str:
    return WORDS[number] if number < len(WORDS) else str(number)
