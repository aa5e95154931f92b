"""A joint projection joined with what is known about its images, as arrays. Free of Streamlit."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from engine.errors import StoreError
from engine.figures.drawing import task_titles
from engine.figures.palette import PURPLE_ORANGE, SURFACE, TASKS
from engine.report import Report
from pages.features.scatter import CIVIDIS, Categorical, Continuous, Labels

NUMBERS = ("probability", "margin", "shift", "sigma")
RIGHT_WRONG = {"light": ("#009E73", "#CC3311"), "dark": ("#4FC3A1", "#FF7A66")}
COLOURS = {
    "task": "Task",
    "class": "Class",
    "correct": "Correctness",
    "prediction": "Prediction",
    "shift": "Shift",
    "margin": "Margin",
    "sigma": "σ",
}
NEEDS_ONE_TASK = ("class", "prediction")


@dataclass(frozen=True, eq=False)
class Space:
    """Images in the spaces of several states; row i is the same image everywhere.

    ``task`` indexes ``tasks``, ``index`` is the image's row in its task's test array. Columns by state have NaN (or a
    prediction of −1) where the state has no value for an image.
    """

    key: str
    document: dict[str, Any]
    tasks: tuple[str, ...]
    task: np.ndarray
    index: np.ndarray
    label: np.ndarray
    points: dict[str, np.ndarray]
    prediction: dict[str, np.ndarray] = field(default_factory=dict)
    numbers: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)  # column → state → (n,)
    graded: tuple[str, ...] = ()  # tasks whose answers are numbers: near or far, not right or wrong

    def __len__(self) -> int:
        return len(self.task)

    @property
    def states(self) -> tuple[str, ...]:
        """Return the states that were projected."""
        return tuple(self.points)

    def right(self, state: str) -> np.ndarray:
        """Return for each image whether the state's prediction is the label: bool (n,)."""
        return self.prediction[state] == self.label

    @property
    def judged(self) -> np.ndarray:
        """Return for each image whether an answer to it is right or wrong: bool (n,)."""
        return ~np.isin(self.task, [number for number, task in enumerate(self.tasks) if task in self.graded])

    def has(self, column: str) -> bool:
        """Return whether a number is known for any image and state."""
        return any(np.isfinite(values).any() for values in self.numbers.get(column, {}).values())

    def shown(self, task: str) -> np.ndarray:
        """Return rows of one task, or all of them."""
        return np.ones(len(self), bool) if task not in self.tasks else self.task == self.tasks.index(task)

    def only(self, task: str) -> "Space":
        """Return the same rows with the classes of one task; images of other tasks have none."""
        own = self.shown(task)
        predictions = {state: np.where(own, values, -1) for state, values in self.prediction.items()}
        number = np.zeros(len(self), dtype=int)
        return replace(self, tasks=(task,), task=number, label=np.where(own, self.label, -1), prediction=predictions)


def read_space(folder: Path, key: str, samples: pd.DataFrame, graded: Collection[str] = ()) -> Space:
    """Read a projection and join it with the run's table of samples.

    Args:
        folder: of the projection.
        key: of its content.
        samples: of the run.
        graded: tasks whose answers are numbers.

    Raises:
        StoreError: the projection cannot be read, or its states show different images.
    """
    try:
        table = pd.read_parquet(folder / "projection.parquet")
        document = json.loads((folder / "projection.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"The projection cannot be read ({error}). Compute it again.") from error
    states = [state for state in document.get("states", []) if state in set(table["state"])]
    if not states:
        raise StoreError("The projection shows no state. Compute it again.")
    first = table[table["state"] == states[0]]
    rows = pd.MultiIndex.from_frame(first[["task", "index"]])
    tasks = tuple(dict.fromkeys(first["task"]))
    points = {state: _aligned(table, state, rows)[["x", "y"]].to_numpy(dtype=float) for state in states}
    if not all(np.isfinite(values).all() for values in points.values()):
        raise StoreError("The projection's states show different images. Compute it again.")
    found = {state: _aligned(samples, state, rows) for state in states}
    labels = found[states[0]]["label"].fillna(-1).to_numpy(dtype=int)
    return Space(
        key=key,
        document=document,
        tasks=tasks,
        task=np.array([tasks.index(task) for task in first["task"]], dtype=int),
        index=first["index"].to_numpy(dtype=int),
        label=labels,
        points=points,
        prediction={state: frame["prediction"].fillna(-1).to_numpy(dtype=int) for state, frame in found.items()},
        numbers={
            column: {state: frame[column].to_numpy(dtype=float) for state, frame in found.items()} for column in NUMBERS
        },
        graded=tuple(task for task in tasks if task in graded),
    )


def colour_of(space: Space, states: Sequence[str], choice: str, report: Report, theme: str) -> Categorical | Continuous:
    """Return the points' colours.

    Args:
        space: the images.
        states: of the panels, in order.
        choice: one of ``COLOURS``; those in ``NEEDS_ONE_TASK`` name the classes of every task in ``space``.
        report: names of tasks and classes.
        theme: ``light`` or ``dark``.
    """
    if choice == "correct":
        right = np.stack([space.right(state) for state in states])
        return Categorical(
            "Prediction",
            ("right", "wrong"),
            np.where(space.judged, (~right).astype(int), -1),
            RIGHT_WRONG["light"],
            RIGHT_WRONG["dark"],
            centroids=False,
        )
    if choice in NEEDS_ONE_TASK:
        names, start = _classes(space, report)
        if choice == "class":
            return Categorical("Class", names, _offset(space.label, start[space.task]), TASKS["light"], TASKS["dark"])
        values = np.stack([_offset(space.prediction[state], start[space.task]) for state in states])
        return Categorical("Predicted class", names, values, TASKS["light"], TASKS["dark"])
    if choice in space.numbers:
        values = np.stack([space.numbers[choice][state] for state in states])
        if choice == "margin":
            limit = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 1.0
            stops = PURPLE_ORANGE[theme][::2]
            return Continuous("Margin", values, stops, -limit, limit, "cosine")
        unit = "feature units"
        title = "Shift: distance to the expert's feature" if choice == "shift" else "Predicted σ, mean over dimensions"
        return Continuous(
            title, values, CIVIDIS, _least_shift(values, states) if choice == "shift" else None, None, unit
        )
    names = list(task_titles(report, space.tasks).values())
    order = list(report.tasks)
    rank = [order.index(task) for task in space.tasks]
    light, dark = ([palette[r % len(palette)] for r in rank] for palette in (TASKS["light"], TASKS["dark"]))
    return Categorical("Task", names, space.task, light, dark)


def faded(colour: Categorical | Continuous, theme: str) -> Categorical | Continuous:
    """Return the same colours, most of the way to the page's own: for a figure that does not show what is set."""
    if isinstance(colour, Continuous):
        return replace(colour, stops=[_toward(stop, SURFACE[theme]) for stop in colour.stops])
    light = [_toward(tone, SURFACE["light"]) for tone in colour.palette]
    return replace(colour, palette=light, dark_palette=[_toward(t, SURFACE["dark"]) for t in colour.dark_palette or ()])


def labels_of(space: Space, states: Sequence[str], report: Report) -> Labels:
    """Return true class, predictions, task and row in its data of every image, for the hover card."""
    names, start = _classes(space, report)
    offset = start[space.task]
    return Labels(
        vocabulary=[*names, *task_titles(report, space.tasks).values()],
        truth=_offset(space.label, offset),
        predictions=np.stack([_offset(space.prediction[state], offset) for state in states]),
        groups=len(names) + space.task,
        graded=[len(names) + number for number, task in enumerate(space.tasks) if task in space.graded],
        index=space.index,
    )


def class_name(report: Report, task: str, number: int) -> str:
    """Return the name of a class; a dash where there is none."""
    classes = report.tasks[task].classes
    return classes[number] if 0 <= number < len(classes) else "–"


def selection_table(space: Space, rows: Sequence[int], states: Sequence[str], report: Report) -> pd.DataFrame:
    """Return the selected images: task, row, true class; by state prediction, probability, margin, shift and σ."""
    chosen = np.asarray(rows, dtype=int)
    tasks = [space.tasks[number] for number in space.task[chosen]]
    columns: dict[str, Any] = {
        "task": tasks,
        "index": space.index[chosen],
        "true class": [class_name(report, task, n) for task, n in zip(tasks, space.label[chosen], strict=True)],
    }
    for state in states:
        predicted = space.prediction[state][chosen]
        columns[f"{state} prediction"] = [class_name(report, t, n) for t, n in zip(tasks, predicted, strict=True)]
        for column in NUMBERS:
            values = space.numbers[column][state][chosen]
            if np.isfinite(space.numbers[column][state]).any():
                columns[f"{state} {column}"] = values
    return pd.DataFrame(columns)


def _aligned(table: pd.DataFrame, state: str, rows: pd.MultiIndex) -> pd.DataFrame:
    """Return rows of one state in the order of the images."""
    part = table[table["state"] == state].drop_duplicates(["task", "index"]).set_index(["task", "index"])
    return part.reindex(rows)


def _classes(space: Space, report: Report) -> tuple[list[str], np.ndarray]:
    """Return names of all classes of the tasks, and where each task's begin."""
    sizes = [len(report.tasks[task].classes) for task in space.tasks]
    names = [name for task in space.tasks for name in report.tasks[task].classes]
    return names, np.cumsum([0, *sizes[:-1]])


def _least_shift(values: np.ndarray, states: Sequence[str]) -> float:
    """Return the smallest shift of the states beside the expert, which has none from itself."""
    moved = values[[state != "expert" for state in states]]
    return float(np.nanmin(moved)) if np.isfinite(moved).any() else 0.0


def _toward(colour: str, surface: str, share: float = 0.7) -> str:
    """Return a hex colour mixed with another."""
    pairs = zip(bytes.fromhex(colour[1:]), bytes.fromhex(surface[1:]), strict=True)
    return "#" + bytes(round(own + share * (other - own)) for own, other in pairs).hex()


def _offset(values: np.ndarray, start: np.ndarray) -> np.ndarray:
    return np.where(values < 0, -1, values + start)
