"""Representations: where merging moves the features of images, and how far correction brings them back."""

import streamlit as st

from engine.errors import EngineError
from engine.figures import MEASURES, bias_bars, bias_table, class_bias, state_title
from engine.figures.bias import bias_states
from engine.figures.shift import shift_distribution
from engine.rounding import rounded
from pages.features.film_maker import film_maker
from pages.features.film_view import film_view, films_of
from pages.features.view import feature_view
from pages.shared.causes import CLICK, class_pick, task_pick
from pages.shared.chrome import context_bar, empty_state, error_state, figure, plain, theme
from pages.shared.drawn import drawn
from pages.shared.nouns import called, kind_of
from pages.shared.one_of import one_of
from pages.shared.selection import task_choice
from pages.shared.state import RunView, current_run, samples

WHICH = """
- **L1** and **L2** are what calibrators are trained to make small. They grow with the length of features, which the
  head does not look at.
- **Cosine** compares directions only, as the head does: the nearest to what decides a prediction.
- **CKA** compares how all images lie to each other, up to rotation and scale. High CKA with a large L1 means that
  the features were moved together, and a simple correction may bring them back.
"""
VIEWS = {"run": "This run, in every state", "film": "Film: scrub a parameter"}


def main() -> None:
    """Draw the linked feature view, then the distances behind it."""
    run = current_run()
    context_bar(run)
    st.title("Where merging moves the features", anchor=False)
    st.write(
        f"An encoder turns {called('an image', kind_of(run.report))} into a feature, a point in a space of many "
        "dimensions; the head reads the class off that point. Averaging weights moves the points away from where each "
        "expert put them, and the head no longer finds them. That drift is the representation bias."
    )
    _drift(run)
    _features(run)
    st.subheader("How far the features are from the experts'", anchor=False)
    if not bias_states(run.report):
        many = kind_of(run.report).many
        empty_state(
            "No distances",
            "Here you see how far each state's features are from the expert's, task by task. This run scored no "
            f"{many} of an expert's task; run a recipe on a zoo with {many} and heads.",
        )
        return
    _distances(run)


@st.fragment
def _features(run: RunView) -> None:
    """Draw the run in all its states, or its films and the way to make another."""
    shown = "run"
    if "expert" in run.report.accuracy:
        shown = one_of(
            "View",
            list(VIEWS),
            format_func=VIEWS.get,
            default=shown,
            key="representations.view",
            persist_state="session",
            label_visibility="collapsed",
            help=f"A film shows the same {kind_of(run.report).many} at every value of one parameter.",
        )
    if shown == "run":
        feature_view(run, key="features")
        return
    films = films_of(run)
    if films:
        film_view(run, films, key="features")
    with st.expander("Make a film over another parameter", expanded=not films, icon=":material/movie:"):
        film_maker(run, key="representations.film")


def _drift(run: RunView) -> None:
    """Say how far this run's features drifted on average, where most and least, and how much of it is left."""
    table = bias_table(run.report, "l1")
    merged = table[table["state"] == "merged"].dropna(subset="value").sort_values("value")
    if merged.empty:
        return
    far, near = merged.iloc[-1], merged.iloc[0]
    text = f"In this run merged features are **{rounded(merged['value'].mean(), 2)}** away from the experts' on average"
    text += " (L1, feature units)"
    if len(merged) > 1:
        text += (
            f": most for **{plain(far['title'])}** ({rounded(far['value'], 2)}), least for "
            f"**{plain(near['title'])}** ({rounded(near['value'], 2)})"
        )
    means = table.groupby("state", sort=False)["value"].mean()
    left = [
        f"**{rounded(means[state], 2)}** after {plain(state_title(state, run.report))}"
        for state, part in run.report.calibrators.items()
        if part.on == "merged" and state in means and means[state] < merged["value"].mean()
    ]
    st.write("; ".join([text, ", ".join(left)] if left else [text]) + ". All tasks and distances are below.")


@st.fragment
def _distances(run: RunView) -> None:
    """Draw bars by task, a table of means, and the classes of one task."""
    report = run.report
    measure = one_of(
        "Distance",
        list(MEASURES),
        format_func=lambda name: MEASURES[name].title,
        default="l1",
        key="representations.measure",
        persist_state="session",
        help="How a state's features are compared with the expert's. L1 is the representation "
        "bias of [Surgery](https://arxiv.org/abs/2402.02705).",
    )
    known, kind, look = MEASURES[measure], kind_of(report), theme()
    figure(
        drawn(run, ("bias", look, measure), lambda: bias_bars(report, measure, look)),
        key="representations.bias",
        run=run,
        unit=f"{known.title}, {known.unit}",
        note=CLICK,
        pick=task_pick(run),
    )
    _means(run, measure)
    st.caption(
        f"{known.title} is the {called(known.explanation, kind)}, on evaluation {kind.many} and in feature space; "
        f"{known.closer}. Distances are never read off the projection."
    )
    with st.expander("Which distance says what", key="representations.which"):
        st.markdown(called(WHICH, kind))
    tasks = [task for task in report.tasks if any(task in part.l1_by_class for part in report.bias.values())]
    if not tasks:
        return
    st.subheader("Class by class", anchor=False)
    said = f"The task whose classes and {kind.many} are compared."
    task = task_choice(report, tasks, key="representations.task", help=said, width=320)
    drawing = drawn(run, ("classes", look, task), lambda: class_bias(report, task, look))
    pick = class_pick(run, task)
    figure(drawing, key="representations.classes", run=run, unit="L1, feature units", tasks=[task], pick=pick)
    st.subheader(called("Image by image", kind).capitalize(), anchor=False)
    try:
        drawing = drawn(run, ("shift", look, task), lambda: shift_distribution(samples(run), task, report, look))
    except EngineError as error:
        error_state(error)
        return
    unit = "Euclidean distance, feature units"
    figure(drawing, key="representations.shift", run=run, unit=unit, tasks=[task], first_seed=True)
    said = "The box holds half of the images, the line 5 to 95 %. A long line to the right: some images went far."
    st.caption(called(said, kind))


def _means(run: RunView, measure: str) -> None:
    """Say of each state the mean over tasks and the share of the merged model's distance that is gone."""
    table = bias_table(run.report, measure)
    means = table.groupby("state", sort=False)["value"].mean()
    merged, lines = means.get("merged"), []
    for state, value in means.items():
        text = f"**{plain(state_title(state, run.report))}** {value:.3f}"
        if state in run.report.calibrators and merged and measure != "cka":
            change = 100 * (value - merged) / merged
            text += f" ({abs(change):.0f} % {'closer' if change < 0 else 'farther'} than merged)"
        lines.append(text)
    st.markdown("Mean over tasks: " + ", ".join(lines) + ".")


main()
