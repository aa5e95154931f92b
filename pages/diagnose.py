"""Diagnose: from a task, a class or images that merging hurts to the causes, in seven answers."""

import streamlit as st

from engine.figures.diagnosis.answer import Scope
from engine.figures.diagnosis.lost import lost_images, scored_tasks
from engine.figures.drawing import task_titles
from engine.rounding import rounded
from pages.sections.diagnose_answers import answer_section, answers_of
from pages.sections.diagnose_report import report_section
from pages.sections.diagnose_views import QUESTIONS_WITH_VIEWS, compute_all
from pages.sections.occlusion import occlusion_section
from pages.shared.chrome import context_bar, empty_state, plain
from pages.shared.nouns import called, kind_of
from pages.shared.selection import choose, selection
from pages.shared.state import RunView, current_run, samples

EVERY = "every"  # value of a list that does not narrow
LISTED = 60  # lost images that are offered one by one


def main() -> None:
    """Draw the choice of what hurts, and the seven answers."""
    run = current_run()
    context_bar(run)
    scope = selection(run.report)
    if scope is None:
        st.title("Why does a task lose by merging?", anchor=False)
        empty_state(
            "Nothing to diagnose",
            "Here a task's loss is followed to its causes. This run scored no task by both an expert and the merged "
            "model. Run a recipe on a zoo with data and heads.",
        )
        return
    st.title(plain(headline(run, scope)), anchor=False)
    _choices(run, scope)
    compute_all(run, scope)
    for number in range(1, 8):
        answer_section(run, scope, number)
    if kind_of(run.report).parts:
        occlusion_section(run, scope, 8)
    report_section(run, scope, lambda theme: answers_of(run, scope, theme), len(QUESTIONS_WITH_VIEWS) + 1)


def headline(run: RunView, scope: Scope) -> str:
    """Return the question that the page answers."""
    if scope.images or scope.label is not None:
        return f"What happens to {scope.words}?"
    accuracy = run.report.accuracy
    change = accuracy["merged"][scope.task] - accuracy["expert"][scope.task]
    verb = "lose" if change < 0 else "gain"
    return f"Why does {scope.title} {verb} {rounded(abs(change))} points?"


def _choices(run: RunView, scope: Scope) -> None:
    """Draw the lists of tasks, classes and lost images; each draws the page again for what is chosen."""
    report, kind = run.report, kind_of(run.report)
    titles = task_titles(report, scored_tasks(report))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium", key="diagnose.choices"):
        task_key = f"diagnose.task.{scope.task}"
        st.selectbox(
            "Task",
            list(titles),
            index=list(titles).index(scope.task),
            format_func=titles.get,
            key=task_key,
            width=240,
            on_change=lambda: choose(report, st.session_state[task_key]),
            help="The task that hurts. A click on its bar on other pages leads here too.",
        )
        class_key = f"diagnose.class.{scope.task}.{scope.label}"
        st.selectbox(
            "Class",
            [None, *range(len(scope.classes))],
            index=0 if scope.label is None else scope.label + 1,
            format_func=lambda label: "All classes" if label is None else scope.classes[label],
            key=class_key,
            width=220,
            on_change=lambda: choose(report, scope.task, st.session_state[class_key]),
            help=f"Only the {kind.many} of one true class.",
        )
        lost, count = _lost(run, scope)
        image_key = f"diagnose.image.{scope.task}.{scope.label}.{scope.images}"
        options = [EVERY, *(["chosen"] if len(scope.images) > 1 else []), *lost]
        shown = "chosen" if len(scope.images) > 1 else scope.images[0] if scope.images else EVERY
        if shown not in options:
            options.append(shown)
        st.selectbox(
            called(f"Image ({count} lost)" if lost else "Image", kind),
            options,
            index=options.index(shown),
            format_func=lambda value: called(
                {EVERY: "All images", "chosen": f"{len(scope.images)} chosen images"}.get(
                    value, lost.get(value, f"Image {value}")
                ),
                kind,
            ),
            key=image_key,
            width=280,
            on_change=lambda: _choose_image(run, scope, st.session_state[image_key]),
            help=called(
                f"One image that the expert knows and the merged model does not; the first {LISTED} are listed.", kind
            ),
        )


def _choose_image(run: RunView, scope: Scope, value: object) -> None:
    if value != "chosen":
        images = (value,) if isinstance(value, int) else ()
        choose(run.report, scope.task, scope.label, images)


def _lost(run: RunView, scope: Scope) -> tuple[dict[int, str], int]:
    """Return some lost images of the task or class (row in the test split → what became of it), and how many are."""
    whole = Scope.of(run.report, scope.task, scope.label)
    table = lost_images(samples(run), whole, ("expert", "merged"))
    if not {"expert", "merged"} <= set(table):
        return {}, 0
    lost = table[(table["expert"] == table["label"]) & (table["merged"] != table["label"])]
    listed = {
        int(row.index): f"Image {row.index}: {scope.class_name(row.label)} → {scope.class_name(row.merged)}"
        for row in lost.head(LISTED).itertuples(index=False)
    }
    return listed, len(lost)


main()
