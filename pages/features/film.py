"""Films of a run as arrays, and packed for the linked view."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from engine.analysis.film import Grid
from engine.catalog import resolve
from engine.catalog.titles import calibrator_title
from engine.errors import StoreError
from engine.figures.palette import MUTED, TASKS, TITLES, state_colour
from engine.pipeline.views.film import FILM, drawn_states
from engine.recipe import Recipe
from engine.sweeps import numbered, places
from engine.sweeps.frames import EXPERTS, SEED
from pages.features.data import RIGHT_WRONG
from pages.features.packing import CIVIDIS, Categorical, Continuous, content_name, pack

FOLDER = "films"  # of a run's folder: a film each, named by its place
MAPS = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
COLOURS = {"correct": "Correctness", "task": "Task", "shift": "Shift"}
KINDS = {"pretrained": "pretrained", "merged": "merged", "expert": "expert"}
DIGITS = 3
FARTHEST = 0.005  # share of the points on each side that may lie outside of what is first in sight
MARGIN = 0.06  # of the plane, free around the others


@dataclass(frozen=True, eq=False)
class Film:
    """A film as its step left it."""

    key: str
    document: dict[str, Any]
    arrays: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.arrays["index"])

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks' names, indexed by ``task``."""
        return tuple(task["name"] for task in self.document["tasks"])

    @property
    def graded(self) -> tuple[bool, ...]:
        """Return for each task whether its answers are numbers, which have no accuracy in any frame."""
        states = self.document["accuracy"].values()
        return tuple(all(value is None for state in states for value in state[task]) for task in self.tasks)

    @property
    def task(self) -> np.ndarray:
        """Return each image's task."""
        return self.arrays["task"].astype(int)

    @property
    def index(self) -> np.ndarray:
        """Return each image's row in its task's test array."""
        return self.arrays["index"].astype(int)

    @property
    def texts(self) -> list[str]:
        """Return the parameter's values for people."""
        return self.document["texts"]

    @property
    def last(self) -> int:
        """Return the last frame's number."""
        return len(self.texts) - 1

    def shown(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the states that are drawn: merged, the calibrator that the film is about or the last one, expert."""
        return drawn_states(self.document, recipe)

    def frame_of(self, text: str | None) -> int | None:
        """Return the frame whose value reads like this, None where there is none."""
        return self.texts.index(text) if text in self.texts else None

    def own_frame(self, recipe: Recipe) -> int:
        """Return the frame nearest to what the recipe says: the run itself, where the film has it."""
        place, alive = (
            self.document["place"],
            [n for n in range(self.last + 1) if str(n) not in self.document["failed"]],
        )
        if place == EXPERTS:
            return alive[-1]
        if place == SEED:
            return next((n for n in alive if self.document["values"][n] == recipe.seeds[0]), alive[0])
        found = next((known.value for known in places(resolve(recipe)) if known.place == numbered(recipe, place)), None)
        values = self.document["values"]
        if found in values:
            return values.index(found)
        if not isinstance(found, int | float):
            return alive[-1]
        return min(alive, key=lambda n: abs(values[n] - found) if isinstance(values[n], int | float) else np.inf)


def read_film(folder: Path, key: str) -> Film:
    """Read a film.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        return Film(key, FILM.read(folder), load_file(folder / "film.safetensors"))
    except (OSError, ValueError) as error:
        raise StoreError(f"The film cannot be read ({error}). Make it again.") from error


def film_packet(film: Film, key: str, states: Sequence[str], recipe: Recipe) -> bytes:
    """Pack a film's points, predictions and numbers for the panels of some states, under a key."""
    document, arrays = film.document, film.arrays
    sizes = [len(task["classes"]) for task in document["tasks"]]
    start = np.cumsum([0, *sizes[:-1]])[film.task]
    names = [name for task in document["tasks"] for name in task["classes"]]
    columns = {
        "truth": (start + arrays["label"]).astype(np.uint16),
        "start": start.astype(np.uint16),
        "task": arrays["task"],
        "groups": (len(names) + film.task).astype(np.uint16),
        "index": film.index.astype(np.uint32),
    }
    for number, state in enumerate(states):
        columns[f"points{number}"] = arrays[f"{state}/points"]
        columns[f"predicted{number}"] = arrays[f"{state}/predictions"]
        columns[f"shift{number}"] = arrays[f"{state}/shift"]
    header = {
        "key": content_name(key),
        "points": len(film),
        "panels": len(states),
        "bounds": _bounds(document["grid"], [arrays[f"{state}/points"] for state in states]),
        "vocabulary": [*names, *(task["title"] for task in document["tasks"])],
        "graded": [len(names) + number for number in range(len(document["tasks"])) if film.graded[number]],
        "film": {
            "title": document["title"],
            "texts": document["texts"],
            "failed": document["failed"],
            "grid": document["grid"],
            "shiftStep": document["shift_step"],
            "tasks": [{name: task[name] for name in ("title", "domain", "evaluated")} for task in document["tasks"]],
            "panels": [_panel(film, state, recipe) for state in states],
        },
    }
    return pack(header, columns)


def film_colour(film: Film, states: Sequence[str], choice: str) -> Categorical | Continuous:
    """Return the colour of a film's points; of correctness and shift the browser takes each frame's values."""
    shape = (len(states), len(film))
    if choice == "shift":
        least, most = shift_span(film, states)
        title = "Shift: distance to the expert's feature"
        return Continuous(title, np.zeros(shape), CIVIDIS, least, most, "feature units", live="shift")
    if choice == "task":
        tasks = film.document["tasks"]
        light, dark = ([_tone(tasks, number, theme) for number in range(len(tasks))] for theme in ("light", "dark"))
        return Categorical("Task", [task["title"] for task in tasks], film.task, light, dark)
    light, dark = RIGHT_WRONG["light"], RIGHT_WRONG["dark"]
    return Categorical("Prediction", ("right", "wrong"), np.zeros(shape, int), light, dark, False, live="correct")


def shift_span(film: Film, states: Sequence[str]) -> tuple[float, float]:
    """Return the smallest and the largest distance to the expert in any frame of the other states, in feature units."""
    found = [film.arrays[f"{state}/shift"].ravel() for state in states if state != "expert"]
    known = np.concatenate([part[part != np.iinfo(np.uint16).max] for part in found] or [np.zeros(0)])
    if not known.size:
        return 0.0, 1.0
    return float(known.min()) * film.document["shift_step"], float(known.max()) * film.document["shift_step"]


def film_state_title(state: str, recipe: Recipe) -> str:
    """Return the title of a film's state."""
    methods = {call.name: call.method for call in recipe.calibrators}
    return TITLES.get(state) or calibrator_title(state, methods.get(state, state))


def _panel(film: Film, state: str, recipe: Recipe) -> dict[str, Any]:
    document = film.document
    accuracy, l1 = ([list(document[part][state][task]) for task in film.tasks] for part in ("accuracy", "l1"))
    inside = [row for task, row in zip(document["tasks"], accuracy, strict=True) if task["domain"] == "in"]
    return {
        "title": film_state_title(state, recipe),
        "kind": KINDS.get(state, "corrected"),
        "tones": [state_colour(state, "light"), state_colour(state, "dark")],
        "curve": [_mean([row[frame] for row in inside]) for frame in range(len(accuracy[0]))],
        "accuracy": [[_rounded(value) for value in row] for row in accuracy],
        "l1": [[_rounded(value, 5) for value in row] for row in l1],
        "trust": [_rounded(value) for value in document["map"]["trust"][state]],
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _rounded(sum(known) / len(known)) if known else None


def _rounded(value: float | None, digits: int = DIGITS) -> float | None:
    return None if value is None else round(value, digits)


def _bounds(grid: Mapping[str, Any], parts: Sequence[np.ndarray]) -> list[float]:
    """Return left, bottom, right and top of the points in all frames, but for the few that are farthest out."""
    whole = Grid((grid["low"][0], grid["low"][1]), grid["step"])
    every = np.concatenate([whole.unpack(part.reshape(-1, 2)) for part in parts])
    low, high = np.nanquantile(every, [FARTHEST, 1 - FARTHEST], axis=0)
    room = MARGIN * (high - low)
    return [*(low - room).tolist(), *(high + room).tolist()]


def _tone(tasks: Sequence[Mapping[str, Any]], number: int, theme: str) -> str:
    """Return a task's colour; those out of domain share the muted one."""
    if tasks[number]["domain"] != "in":
        return MUTED[theme]
    rank = sum(task["domain"] == "in" for task in tasks[:number])
    return TASKS[theme][rank % len(TASKS[theme])]
