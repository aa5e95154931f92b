"""The section of the weights page that walks the straight path between two models."""

from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.figures.drawing import expert_titles, task_titles
from engine.figures.interpolation import barrier_table, path_figure
from engine.figures.palette import TITLES
from engine.pipeline.viewing.on_weights import MERGED, PRETRAINED
from engine.pipeline.views.interpolation import INTERPOLATION
from pages.shared.chrome import figure, plain, theme
from pages.shared.nouns import kind_of
from pages.shared.on_demand import view_on_demand
from pages.shared.one_of import one_of
from pages.shared.state import RunView
from pages.shared.tables import draw_table
from pages.shared.zoos import zoo_manifest

BARRIERS = {
    "task": "Task",
    "start": st.column_config.NumberColumn("Start (%)", format="%.1f"),
    "end": st.column_config.NumberColumn("End (%)", format="%.1f"),
    "lowest": st.column_config.NumberColumn("Lowest (%)", format="%.1f"),
    "highest": st.column_config.NumberColumn("Highest (%)", format="%.1f"),
    "barrier": st.column_config.NumberColumn(
        "Loss barrier", format="%.3f", help="Nats above the line between the ends"
    ),
    "images": st.column_config.NumberColumn("n", help="Samples scored"),
    "available": st.column_config.NumberColumn("of"),
}


def path(run: RunView) -> None:
    """Draw accuracy on the straight path between two models."""
    st.write(
        "Models on the straight line between two models, θ(α) = (1 − α) θ₁ + α θ₂. If the loss stays below "
        "the line between its ends, both models lie in one basin (linear mode connectivity), and averaging them is "
        "safe; a barrier says how far it rises above."
    )
    models, many = _models(run), kind_of(run.report).many
    first, second, rest = st.columns((2, 2, 1), vertical_alignment="bottom")
    start = first.selectbox(
        "Start",
        list(models),
        format_func=models.__getitem__,
        key="weights.start",
        bind="query-params",
        help="The model at which the path through weight space begins.",
    )
    last = [MERGED] if MERGED in models else list(models)[-1:]
    end = second.selectbox(
        "End",
        list(models),
        index=list(models).index(last[0]),
        format_func=models.__getitem__,
        key="weights.end",
        bind="query-params",
        help="The model at which the path ends.",
    )
    with rest.popover("Settings", icon=":material/tune:", key="weights.path.settings"):
        points = st.number_input(
            "Models on the path",
            3,
            101,
            11,
            key="weights.points",
            bind="query-params",
            help="Weights are interpolated linearly between both ends; every point is a model that is scored.",
        )
        images = st.number_input(
            f"{many.capitalize()} a task, at most",
            2,
            100_000,
            200,
            key="weights.images",
            bind="query-params",
            help=f"Drawn evenly over classes from the evaluation {many}.",
        )
    if start == end:
        st.info("Choose two different models.", icon=":material/info:")
        return
    request = INTERPOLATION.ask(run.report.recipe, start=start, end=end, points=points, images=images)
    ends = (models[start], models[end])
    folder = view_on_demand(
        run,
        INTERPOLATION,
        request,
        key="weights.path",
        label="Walk the path",
        icon=":material/timeline:",
        takes=f"Encodes up to {images} {many} of every task with {points} models.",
        title=" to ".join(ends),
        draw=lambda example, folder: _path_figures(example, INTERPOLATION.read(folder), ("Pretrained", "Merged")),
    )
    if folder is None:
        return
    _path_figures(run, INTERPOLATION.read(folder), ends)


@st.fragment
def _path_figures(run: RunView, document: dict[str, Any], ends: tuple[str, str]) -> None:
    known = task_titles(run.report)
    titles = {task: known.get(task, task) for task in document["tasks"]}
    quantity = one_of(
        "Show",
        ["accuracy", "loss"],
        format_func=str.capitalize,
        default="accuracy",
        key="weights.quantity",
        help="What is measured at every point of the path.",
    )
    counts = {found["images"] for found in document["tasks"].values()}
    said = f"{min(counts)}–{max(counts)}" if len(counts) > 1 else str(*counts)
    figure(
        path_figure(document, titles, ends, quantity, theme()),
        key="weights.path.figure",
        run=run,
        images=False,
        unit=f"{quantity.capitalize()} on {said} evaluation images a task, split seed {document['split_seed']}",
    )
    table = barrier_table(document, titles)
    worst = table.loc[table["barrier"].idxmax()]
    if worst["barrier"] > 0:
        st.write(f"Highest loss barrier: **{worst['barrier']:.3f}** nats on {plain(worst['task'])}.")
    else:
        st.write("No task has a loss barrier: on every path the loss stays at or below the line between its ends.")
    draw_table(table, hide_index=True, key="weights.barriers", column_config=BARRIERS)


def _models(run: RunView) -> dict[str, str]:
    """Return names and titles of the models that a path can join."""
    report = run.report
    found = {PRETRAINED: "Pretrained"}
    found |= {MERGED: "Merged"} if report.merged.kind == "static" else {}
    try:
        references = [reference.name for reference in zoo_manifest(report.recipe.zoo).references]
    except EngineError:
        references = []
    found |= {name: TITLES[name] for name in references}
    named = expert_titles(run.report, report.experts)
    return found | {name: f"Expert, {title}" for name, title in zip(report.experts, named, strict=True)}
