"""The section on spawning: two runs of one training that part at a step."""

import streamlit as st

from engine.figures.spawning import spawning_figure
from engine.pipeline.views.spawning import SPAWNING
from pages.sections.premerging_measures import tasks_of_classes
from pages.shared.chrome import figure, plain, theme
from pages.shared.nouns import called, kind_of
from pages.shared.on_demand import view_on_demand
from pages.shared.state import RunView


def spawning(run: RunView) -> None:
    """Draw the instability over the step at which two runs of one training part."""
    st.write(
        "A training is copied at some step, and both copies go on with batches of their own. If the path between them "
        "has no barrier, they ended in one basin. Experts can be averaged because they part at a pretrained base, "
        "which is late enough."
    )
    tasks = tasks_of_classes(run)
    if not tasks:
        return
    whose, long, wide, often = st.columns((2, 1, 1, 1), vertical_alignment="bottom")
    task = whose.selectbox(
        "Task",
        list(tasks),
        format_func=tasks.__getitem__,
        key="premerging.spawn.task",
        bind="query-params",
        help="The task that both runs are trained on.",
    )
    steps = long.number_input(
        "Steps",
        4,
        100_000,
        60,
        key="premerging.spawn.steps",
        bind="query-params",
        help="Gradient steps of each training.",
    )
    batch_size = wide.number_input(
        "Batch size",
        1,
        8192,
        64,
        key="premerging.spawn.batch_size",
        bind="query-params",
        help=called("Images of a step; at most as many as the task has to train on.", kind_of(run.report)),
    )
    pairs = often.number_input(
        "Pairs",
        1,
        20,
        1,
        key="premerging.spawn.pairs",
        bind="query-params",
        help="Trainings by other seeds, each run twice. Several show how much is chance.",
    )
    parts = tuple(sorted({0, steps // 4, steps // 2}))
    request = SPAWNING.ask(run.report.recipe, task=task, steps=steps, batch_size=batch_size, parts=parts, pairs=pairs)
    folder = view_on_demand(
        run,
        SPAWNING,
        request,
        key="premerging.spawn",
        label="Train and part",
        icon=":material/call_split:",
        takes=f"{2 * pairs * len(parts)} trainings of {steps} steps that part at {', '.join(map(str, parts))}; needs "
        "training images.",
        title=plain(f"Instability on {tasks[task]}"),
    )
    if folder is None:
        return
    document = SPAWNING.read(folder)
    figure(
        spawning_figure(document, theme()),
        key="premerging.spawn.figure",
        run=run,
        unit=f"Highest error between both runs less the mean of theirs, on {tasks[task]}; seeds after parting 1 and 2, "
        "of the next pair 3 and 4 …",
        count=f"{document['images']} of {document['available']}",
    )
