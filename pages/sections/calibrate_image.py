"""The section of the calibrate page that looks at one image before and after a correction."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import streamlit as st

from engine.figures import state_title
from engine.figures.one_image import FATES, fates, one_image_figure
from engine.pipeline.views.predictions import PREDICTIONS
from pages.features.data import class_name
from pages.features.images import images_of, show_sample
from pages.shared.chrome import empty_state, figure, plain, theme
from pages.shared.nouns import called, kind_of
from pages.shared.on_demand import view_on_demand
from pages.shared.one_of import one_of
from pages.shared.selection import task_choice
from pages.shared.state import RunView, samples

SIDE = 160  # px that small images are enlarged to, pixel by pixel


@dataclass(frozen=True, eq=False)
class _Images:
    """Images of one task: the only one is theirs."""

    key: str
    tasks: tuple[str, ...]
    index: np.ndarray

    @property
    def task(self) -> np.ndarray:
        """Return the number of each image's task: zeros (n,)."""
        return np.zeros(len(self.index), dtype=int)

    def __len__(self) -> int:
        return len(self.index)


def one_image(run: RunView) -> None:
    """Draw the likeliest classes of an image before and after a correction, and for its expert."""
    kind = kind_of(run.report)
    st.subheader(called("What a correction does to one image", kind), anchor=False)
    folder = view_on_demand(
        run,
        PREDICTIONS,
        PREDICTIONS.ask(run.report.recipe),
        key="calibrate.predictions",
        label=called("Look at single images", kind),
        icon=":material/image_search:",
        takes=called("Asks every model for its five likeliest classes of every evaluation image.", kind),
    )
    if folder is None:
        return
    table = pd.read_parquet(folder / "predictions.parquet")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        state = st.selectbox(
            "Calibrator",
            list(run.report.calibrators),
            width=260,
            key="calibrate.one.by",
            bind="query-params",
            format_func=lambda name: state_title(name, run.report),
            help=called("The calibrator whose correction of the image is shown.", kind),
        )
        task = task_choice(
            run.report,
            [name for name in run.report.tasks_of("in") if (table["task"] == name).any()],
            key="calibrate.one.task",
            help=called("The task whose images can be chosen.", kind),
        )
    before = run.report.calibrators[state].on
    rows = samples(run)
    rows = rows[(rows["task"] == task) & (rows["state"] == "merged") & (rows["split"] == "evaluate")]
    labels, own = rows.set_index("index")["label"], table[table["task"] == task]
    found = fates(own, labels, before, state)
    counts = found.value_counts()
    fate = one_of(
        "What became of it",
        list(FATES),
        default=next(name for name in FATES if counts.get(name)),
        format_func=lambda name: f"{FATES[name]} ({counts.get(name, 0)})",
        key=f"calibrate.one.fate.{run.id}.{state}.{task}",
        help=f"{kind.many.capitalize()} by whether the model was right before correction and is right after it.",
    )
    chosen = found.index[found == fate].to_numpy()
    if not len(chosen):
        empty_state(called("No such image", kind), "Choose another group above.")
        return
    place = st.number_input(
        called(f"Image of {len(chosen)}", kind),
        1,
        len(chosen),
        width=160,
        key=f"calibrate.one.{run.id}.{state}.{task}.{fate}",
        bind="query-params",
        help=called("The image whose features are followed below.", kind),
    )
    _image(run, own[own["index"] == chosen[place - 1]], task, state, int(labels[chosen[place - 1]]))


def _image(run: RunView, rows: pd.DataFrame, task: str, state: str, truth: int) -> None:
    before, index = run.report.calibrators[state].on, int(rows["index"].iloc[0])
    all_of_task = samples(run)
    all_of_task = all_of_task[(all_of_task["task"] == task) & (all_of_task["state"] == "merged")]["index"].to_numpy()
    atlas = images_of(_Images(f"calibrate:{task}:{len(all_of_task)}", (task,), all_of_task), run.report)
    shift = rows[rows["rank"] == 1].set_index("state")["shift"]
    name = class_name(run.report, task, truth)
    with st.grid("auto", min_column_width=300, gap="small"):
        with st.container(gap="xsmall"):
            if atlas is not None:
                place = int(np.flatnonzero(all_of_task == index)[0])
                show_sample(atlas, place, name, enlarged=SIDE, width=SIDE)
            st.markdown(f"**{plain(name)}** :gray[· {kind_of(run.report).one} {index}]")
            after = plain(state_title(state, run.report))
            st.write(
                f"Its feature is {shift[before]:.3f} away from the expert's, with {after} {shift[state]:.3f} "
                "(Euclidean, feature units)."
            )
        with st.container():
            figure(
                one_image_figure(rows, run.report, task, [before, state, "expert"], truth, theme()),
                key="calibrate.one.figure",
                run=run,
                unit="The head's probability of the likeliest classes",
                tasks=[task],
                count=f"1 of {len(all_of_task):,}",
            )
    st.caption("✓ marks the true class. A class that is not among a model's five likeliest has no bar of it.")
