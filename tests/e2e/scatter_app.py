"""A small app around the linked feature view, over made points; the browser tests drive it.

Query parameters: ``n`` points, ``colour`` (task, shift, verdict), ``thumbs``, ``morph``, ``film`` (``graded``: of a
task whose answers are numbers and has no accuracy, ``unscored``: of such tasks alone).
"""

import numpy as np
import streamlit as st

from engine.analysis.film import Grid, pack_shift
from engine.recipe import Recipe
from pages.features.film import Film, film_colour, film_packet
from pages.features.scatter import TOL_MUTED_DARK, Atlas, Categorical, Continuous, Labels, Panel, linked_scatter

TASKS = ("digits", "fruits", "signs", "clothing", "doodles", "shapes", "letters", "leaves")
CLASSES = tuple(f"{task} {kind}" for task in TASKS for kind in ("one", "two", "three", "four"))
VERDICTS = ("right", "wrong")
ACCURACY = (0.45, 0.72, 0.9)
FIRST = 70_000  # row in the data of the first point


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
def made_film(n: int, kind: str) -> Film:
    """A film of 21 frames in which n points travel from their merged to their corrected places and on."""
    unscored = {"graded": TASKS[:1], "unscored": TASKS}.get(kind, ())
    points = made_points(n)
    merged, corrected, expert = points["states"]
    share = np.linspace(0, 1.5, 21)[:, None, None]
    places = {
        "merged": merged + share * (corrected - merged),
        "surgery": corrected + 0.3 * share,
        "expert": expert[None],
    }
    grid, arrays = Grid.around(list(places.values())), {}
    for number, (state, frames) in enumerate(places.items()):
        right = np.random.default_rng(number).random(n) < ACCURACY[number] * np.linspace(1, 0.6, len(frames))[:, None]
        arrays[f"{state}/points"] = grid.pack(frames)
        arrays[f"{state}/predictions"] = np.where(right, points["label"] % 4, (points["label"] + 1) % 4).astype(
            np.uint8
        )
        arrays[f"{state}/shift"], step = pack_shift(np.linalg.norm(frames - expert, axis=2))
    arrays |= {"task": points["task"].astype(np.uint16), "index": np.arange(n), "label": points["label"] % 4}
    tasks = [
        {"name": name, "title": name.capitalize(), "domain": "in", "classes": list("abcd"), "evaluated": n // 8}
        for name in TASKS
    ]
    means = {
        state: {
            name: (
                100 * (arrays[f"{state}/predictions"] == arrays["label"])[:, points["task"] == number].mean(axis=1)
            ).tolist()
            for number, name in enumerate(TASKS)
        }
        for state in places
    }
    accuracy = {
        state: {name: [None] * len(row) if name in unscored else row for name, row in rows.items()}
        for state, rows in means.items()
    }
    document = {
        "title": "Made parameter",
        "place": "made",
        "texts": [f"{value:g}" for value in np.round(share.ravel(), 3)],
        "failed": {"20": "Too far."},
        "states": list(places),
        "grid": {"low": list(grid.low), "step": grid.step},
        "shift_step": step,
        "tasks": tasks,
        "accuracy": accuracy,
        "l1": means,
        "map": {"trust": {state: [1.0] * len(frames) for state, frames in places.items()}},
    }
    return Film(f"made-{n}-{kind}", document, arrays)


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

if st.query_params.get("film"):
    kind = str(st.query_params["film"])
    film, states = made_film(n, kind), ("merged", "surgery", "expert")
    linked_scatter(
        [
            Panel(state.capitalize(), "circle", film_points)
            for state, film_points in zip(states, points["states"], strict=True)
        ],
        key="film",
        content_key=film.key,
        content=lambda: film_packet(film, film.key, states, Recipe()),
        colour=film_colour(film, states, "correct"),
        film={"at": 6, "revision": 0},
    )
    st.stop()

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
    labels=Labels(
        vocabulary,
        points["label"],
        points["predictions"],
        groups=points["task"] + len(CLASSES),
        index=FIRST + np.arange(n),
    ),
    thumbnails=None if st.query_params.get("thumbs") == "0" else Atlas(f"made-{n}", made_images(n)),
    visible=np.arange(n) < n // 2 if hide else None,
    selection=st.session_state.pop("outside", None),
    morph=titles if st.query_params.get("morph") else (),
    morph_open=bool(st.query_params.get("morph")),
)
st.session_state["runs"] = st.session_state.get("runs", 0) + 1
summary = f"SELECTED={len(result.indices)} FIRST={list(result.indices[:3])} REVISION={result.revision}"
st.caption(f"{summary} RUNS={st.session_state['runs']}")
