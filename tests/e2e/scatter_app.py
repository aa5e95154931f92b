"""A small app around the linked feature view, over made points; the browser tests drive it.

Query parameters: ``n`` points, ``colour`` (task, shift, verdict), ``thumbs``, ``morph``.
"""

import numpy as np
import streamlit as st

from pages.features.scatter import TOL_MUTED_DARK, Atlas, Categorical, Continuous, Labels, Panel, linked_scatter

TASKS = ("digits", "fruits", "signs", "clothing", "doodles", "shapes", "letters", "leaves")
CLASSES = tuple(f"{task} {kind}" for task in TASKS for kind in ("one", "two", "three", "four"))
VERDICTS = ("right", "wrong")
ACCURACY = (0.45, 0.72, 0.9)


@st.cache_resource(max_entries=4)
def made_points(n: int) -> dict[str, np.ndarray]:
    """Three states of n points: tasks overlap when merged, stand apart at the experts."""
    rng = np.random.default_rng(0)
    task = np.arange(n) % len(TASKS)
    label = task * 4 + rng.integers(0, 4, n)
    angle = task * 2 * np.pi / len(TASKS) + (label % 4 - 1.5) * 0.16
    centres = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    noise = rng.normal(size=(n, 2))
    wobble = rng.normal(size=(n, 2))
    merged = centres * 2.0 + 0.85 * noise + 0.25 * wobble + [0.7, -0.4]
    corrected = centres * 3.4 + 0.62 * noise + 0.1 * wobble
    expert = centres * 4.2 + 0.45 * noise
    predictions = [np.where(rng.random(n) < share, label, rng.integers(0, len(CLASSES), n)) for share in ACCURACY]
    shift = np.linalg.norm(merged - expert, axis=1)
    return {
        "states": np.stack([merged, corrected, expert]),
        "task": task,
        "label": label,
        "predictions": np.stack(predictions),
        "shift": shift,
    }


@st.cache_resource(max_entries=4)
def made_images(n: int) -> np.ndarray:
    """Thumbnails: a disc in the task's tone, of a size that tells the row."""
    y, x = np.mgrid[:32, :32] - 15.5
    radius = 5 + (np.arange(n) % 9)
    disc = (x**2 + y**2)[None] <= (radius**2)[:, None, None]
    tone = np.stack([np.arange(n) % 8 * 30 + 40, np.full(n, 120), 250 - np.arange(n) % 8 * 30], axis=1)
    return (disc[..., None] * tone[:, None, None, :]).astype(np.uint8)


st.set_page_config(page_title="Linked feature view", layout="wide")
n = int(st.query_params.get("n", 800))
points = made_points(n)
correct = points["predictions"] == points["label"]
st.subheader("Eight tasks in three states")
left, right, more = st.columns(3)
kind = left.segmented_control(
    "Colour", ["task", "shift", "verdict"], default=st.query_params.get("colour", "task"), key="colour"
)
hide = right.toggle("Hide the second half", key="hide")
if not more.toggle("Show the view", value=True, key="shown"):
    st.stop()
if more.button("Select rows 1 to 3"):
    st.session_state["outside"] = [1, 2, 3]

if kind == "shift":
    colour = Continuous("Shift", points["shift"], unit="units")
elif kind == "verdict":
    colour = Categorical("Prediction", VERDICTS, (~correct).astype(int), ("#44AA99", "#CC6677"), centroids=False)
else:
    colour = Categorical("Task", TASKS, points["task"], dark_palette=TOL_MUTED_DARK)

shapes = ("circle", "triangle", "square")
titles = ("Merged", "Corrected", "Expert")
panels = [
    Panel(title, shape, coordinates, note=f"{100 * share:.1f} %")
    for title, shape, coordinates, share in zip(titles, shapes, points["states"], correct.mean(axis=1), strict=True)
]
vocabulary = [*CLASSES, *TASKS]
result = linked_scatter(
    panels,
    key="view",
    content_key=f"made-{n}",
    colour=colour,
    labels=Labels(vocabulary, points["label"], points["predictions"], groups=points["task"] + len(CLASSES)),
    thumbnails=None if st.query_params.get("thumbs") == "0" else Atlas(f"made-{n}", made_images(n)),
    visible=np.arange(n) < n // 2 if hide else None,
    selection=st.session_state.pop("outside", None),
    morph=titles if st.query_params.get("morph") else (),
    morph_open=bool(st.query_params.get("morph")),
)
st.session_state["runs"] = st.session_state.get("runs", 0) + 1
summary = f"SELECTED={len(result.indices)} FIRST={list(result.indices[:3])} REVISION={result.revision}"
st.caption(f"{summary} RUNS={st.session_state['runs']}")
