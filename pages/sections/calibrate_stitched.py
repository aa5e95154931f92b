"""Sections of the calibrate page that send images through once more: stitched networks and shifted images."""

from pathlib import Path

import streamlit as st

from engine.figures.shift_kinds import QUANTITIES as SHIFT_QUANTITIES
from engine.figures.shift_kinds import others_of, shift_kinds_figure
from engine.figures.stitching import ORDERS, QUANTITIES, linearity_figure, stitched_figure
from engine.pipeline.views.shift import SHIFT
from engine.pipeline.views.stitching import STITCHING
from pages.sections.calibrate_choices import choose, choose_tasks, count_of, lacks_blocks, open_view
from pages.shared.chrome import figure, theme
from pages.shared.nouns import called, kind_of
from pages.shared.state import RunView

SEEN = "The task whose images go through the models."
SHORT = {"accuracy": "Accuracy", "l1": "L1 to the expert"}


def stitched(run: RunView) -> None:
    """Draw the merged model's first blocks with the expert's last ones, and whether activations add up."""
    st.subheader("Can the expert take over?", anchor=False)
    st.write(
        "A network is stitched from the first parts of one model and the remaining parts of the task's expert. The "
        "nearer the activations are to the expert's, the less accuracy is lost at the seam."
    )
    if lacks_blocks(run, "No blocks to stitch"):
        return
    takes = "Takes up to {images} images of every task through every pair of models, cut at every block."
    folder = open_view(run, STITCHING, "Stitch the networks", ":material/join_left:", takes, _stitched)
    if folder is not None:
        _stitched(run, folder)


def _stitched(run: RunView, folder: Path) -> None:
    document = STITCHING.read(folder)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        order = choose("Order", ORDERS, "begins", "stitching.order", "Whose parts come before the cut.")
        tasks = choose_tasks(run, document, STITCHING, SEEN)
    figure(
        stitched_figure(document, run.report, order, tasks, theme()),
        key="calibrate.stitching.figure",
        run=run,
        unit="Accuracy (%), mean over tasks",
        tasks=tasks,
        count=count_of(document, tasks),
    )
    st.caption(
        "Parts are the embedding, each block, and the read-out. A calibrator acts in its own model's parts only: "
        "one of the output only where the read-out is its model's, else its line hides that of the model alone. "
        "The other task's expert is that of the next task."
    )
    _linearity(run, document, tasks)


def _linearity(run: RunView, document: dict, tasks: list[str]) -> None:
    """Draw how nearly activations point where the experts' combination does."""
    hint = "Activations, or their change against the pretrained model's."
    quantity = choose("Linearity", QUANTITIES, "change", "stitching.quantity", hint)
    figure(
        linearity_figure(document, run.report, quantity, tasks, theme()),
        key="calibrate.stitching.linearity",
        run=run,
        unit="Class token, mean over tasks",
        tasks=tasks,
        count=count_of(document, tasks),
    )
    exact = all(document["tasks"][task]["exact"] for task in tasks)
    st.caption(
        "Cross-task linearity: how nearly a model's activations point where the same combination of the experts' does, "
        + ("with the merge's own coefficients" if exact else "here their plain mean, as this merge is no weighted sum")
        + ". Activations of relatives are alike in any case; the changes against the pretrained model leave that out."
    )


def shifted(run: RunView) -> None:
    """Draw every state on images that no calibrator was fitted to, of another kind than those it was."""
    kind = kind_of(run.report)
    st.subheader(called("Does the repair hold for other images?", kind), anchor=False)
    st.write(
        called("Calibrators were fitted to images like those they are scored on. ", kind)
        + f"Here the evaluation {kind.many} are shifted: {kind.shifted_by}; "
        "and the zoo's own shifted versions of a task where it has some."
    )
    takes = "Takes up to {images} images of every task through every model, once for each kind of shift."
    drawn = "usual"
    if len(kind.shifts) > 1:
        hint = (
            "Which shifts are drawn; the seven corruptions are those of papers on merging, at their highest severity."
        )
        drawn = choose("Shifts", kind.drawn, drawn, "shift.drawn", hint)
    chosen = {"drawn": drawn} if drawn != "usual" else {}
    folder = open_view(run, SHIFT, "Shift the images", ":material/filter_vintage:", takes, _shifted, **chosen)
    if folder is not None:
        _shifted(run, folder)


def _shifted(run: RunView, folder: Path) -> None:
    document = SHIFT.read(folder)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        hint = "Which quantity is drawn for every kind of shift."
        quantity = choose("Shown", SHORT, "accuracy", "shift.quantity", hint)
        tasks = choose_tasks(run, document, SHIFT, SEEN)
    figure(
        shift_kinds_figure(document, run.report, quantity, tasks, theme()),
        key="calibrate.shift.figure",
        run=run,
        unit=f"{SHIFT_QUANTITIES[quantity]}, mean over tasks",
        tasks=tasks,
        count=count_of(document, tasks) + others_of(document, run.report, tasks),
    )
    st.caption(
        "Compare a calibrator's lead over the merged model in the first row with its lead in the others. The expert "
        "suffers from a shift as well: what is far below it is lost by merging, the rest by the shift."
    )
