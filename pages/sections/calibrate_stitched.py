"""Sections of the calibrate page that send images through once more: stitched networks and shifted images."""

import streamlit as st

from engine.figures.shift_kinds import QUANTITIES as SHIFT_QUANTITIES
from engine.figures.shift_kinds import shift_kinds_figure
from engine.figures.stitching import ORDERS, QUANTITIES, linearity_figure, stitched_figure
from engine.pipeline.views.shift import SHIFT
from engine.pipeline.views.stitching import STITCHING
from pages.sections.calibrate_views import choose_tasks
from pages.shared.chrome import empty_state, figure, theme
from pages.shared.on_demand import view_on_demand
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
    if run.report.merged.kind == "per_sample":
        empty_state("No blocks to stitch", "This merge makes other weights for every image.")
        return
    request = STITCHING.ask(run.report.recipe)
    folder = view_on_demand(
        run,
        STITCHING,
        request,
        key=f"calibrate.{STITCHING.name}",
        label="Stitch the networks",
        icon=":material/join_left:",
        takes=f"Takes up to {request.images} images of every task through every pair of models, cut at every block.",
    )
    if folder is None:
        return
    document = STITCHING.read(folder)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        order = st.segmented_control(
            "Order",
            list(ORDERS),
            format_func=ORDERS.get,
            default="begins",
            required=True,
            key="calibrate.stitching.order",
            bind="query-params",
            help="Whose parts come before the cut.",
        )
        tasks = choose_tasks(run, document, "stitching", SEEN)
    figure(
        stitched_figure(document, run.report, order, tasks, theme()),
        key="calibrate.stitching.figure",
        run=run,
        unit="Accuracy (%), mean over tasks",
        tasks=tasks,
        count=_count(document, tasks),
    )
    st.caption(
        "Parts are the embedding, each block, and the read-out. A calibrator acts in its own model's parts only: "
        "one of the output only where the read-out is its model's, else its line hides that of the model alone. "
        "The other task's expert is that of the next task."
    )
    _linearity(run, document, tasks)


def _linearity(run: RunView, document: dict, tasks: list[str]) -> None:
    """Draw how nearly activations point where the experts' combination does."""
    quantity = st.segmented_control(
        "Linearity",
        list(QUANTITIES),
        format_func=QUANTITIES.get,
        default="change",
        required=True,
        key="calibrate.stitching.quantity",
        bind="query-params",
        help="Activations, or their change against the pretrained model's.",
    )
    figure(
        linearity_figure(document, run.report, quantity, tasks, theme()),
        key="calibrate.stitching.linearity",
        run=run,
        unit="Class token, mean over tasks",
        tasks=tasks,
        count=_count(document, tasks),
    )
    exact = all(document["tasks"][task]["exact"] for task in tasks)
    st.caption(
        "Cross-task linearity: how nearly a model's activations point where the same combination of the experts' does, "
        + ("with the merge's own coefficients" if exact else "here their plain mean, as this merge is no weighted sum")
        + ". Activations of relatives are alike in any case; the changes against the pretrained model leave that out."
    )


def shifted(run: RunView) -> None:
    """Draw every state on images that no calibrator was fitted to, of another kind than those it was."""
    st.subheader("Does the repair hold for other images?", anchor=False)
    st.write(
        "Calibrators were fitted to images like those they are scored on. Here the evaluation images are shifted: "
        "noise, blur, low contrast, negatives, and the zoo's own shifted versions of a task where it has some."
    )
    request = SHIFT.ask(run.report.recipe)
    folder = view_on_demand(
        run,
        SHIFT,
        request,
        key=f"calibrate.{SHIFT.name}",
        label="Shift the images",
        icon=":material/filter_vintage:",
        takes=f"Takes up to {request.images} images of every task through every model, once for each kind of shift.",
    )
    if folder is None:
        return
    document = SHIFT.read(folder)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        quantity = st.segmented_control(
            "Shown",
            list(SHORT),
            format_func=SHORT.get,
            default="accuracy",
            required=True,
            key="calibrate.shift.quantity",
            bind="query-params",
            help="Which quantity is drawn for every kind of shift.",
        )
        tasks = choose_tasks(run, document, "shift", SEEN)
    figure(
        shift_kinds_figure(document, run.report, quantity, tasks, theme()),
        key="calibrate.shift.figure",
        run=run,
        unit=f"{SHIFT_QUANTITIES[quantity]}, mean over tasks",
        tasks=tasks,
        count=_count(document, tasks),
    )
    st.caption(
        "Compare a calibrator's lead over the merged model in the first row with its lead in the others. The expert "
        "suffers from a shift as well: what is far below it is lost by merging, the rest by the shift."
    )


def _count(document: dict, tasks: list[str]) -> str:
    """Return images of a task that were looked at, of those there are."""
    found = [sorted({document["tasks"][task][name] for task in tasks}) for name in ("images", "available")]
    return " of ".join("–".join(f"{end:,}" for end in dict.fromkeys((part[0], part[-1]))) for part in found)
