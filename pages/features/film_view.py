"""The film of a run above its points: one slider moves them, without a run and without the engine."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from engine.errors import EngineError
from engine.pipeline.views.film import FILM
from engine.recipe import Recipe
from engine.sweeps.frames import SEED, film_title
from pages.features.film import COLOURS, FOLDER, MAPS, Film, film_colour, film_packet, film_state_title, read_film
from pages.features.images import images_coming, images_of
from pages.features.inspector import way_to_causes
from pages.features.packing import Panel, ScatterDataError, content_name
from pages.features.scatter import linked_scatter
from pages.shared.chrome import error_state, plain
from pages.shared.nouns import called, kind_of
from pages.shared.on_demand import recent, refresh_when
from pages.shared.one_of import one_of
from pages.shared.state import RunView, store

AT = "at"  # the address parameter that holds the value shown
FIRST = "merge.params.scaling"  # the film that is shown first, where there is one
SHAPES = {"merged": "triangle", "expert": "circle"}


@dataclass(frozen=True)
class FilmEntry:
    """A film that there is of a run."""

    place: str
    title: str
    folder: Path
    key: str
    map: str = "pca"
    frames: str = ""  # its values in words, where there is a newer film over its parameter in its map

    @property
    def name(self) -> str:
        """Return its name in the address."""
        name = self.place if self.map == "pca" else f"{self.place}:{self.map}"
        return f"{name}:{self.frames}" if self.frames else name

    @property
    def shown(self) -> str:
        """Return its title among a run's films."""
        title = self.title if self.map == "pca" else f"{self.title}, {MAPS[self.map]}"
        return f"{title}, {self.frames}" if self.frames else title


def films_of(run: RunView) -> list[FilmEntry]:
    """Return the films of a run: those that were made of its recipe, the newest first, and those that came with it."""
    recipe = run.report.recipe
    made = []
    for row in recent(FILM.name):
        folder = store().find(row.result, checksums=False) if row.state == "finished" and row.result else None
        if folder is not None and row.request.get("recipe") == _asked(recipe):
            place, plane = str(row.request.get("place")), str(row.request.get("map", "pca"))
            made.append(FilmEntry(place, film_title(recipe, place), folder, row.result, plane))
    for folder, stamp in _shipped(run.folder / FOLDER):
        key = f"{run.id}:{folder.name}:{stamp}"
        made.append(FilmEntry(folder.name, film_title(recipe, folder.name), folder, key))
    found: dict[str, FilmEntry] = {}
    for entry in made:
        if found.setdefault(entry.name, entry).key != entry.key:
            other = replace(entry, frames=_frames(str(entry.folder), entry.key))
            found.setdefault(other.name, other)
    return sorted(found.values(), key=lambda entry: (entry.name != FIRST, entry.shown))


@st.cache_data(max_entries=256, show_spinner=False)
def _frames(folder: str, key: str) -> str:
    """Return the values of a film in words."""
    try:
        texts = FILM.read(Path(folder))["texts"]
    except EngineError:  # it is gone meanwhile
        return ""
    return f"{texts[0]} to {texts[-1]} in {len(texts)} frames"


def _shipped(folder: Path) -> list[tuple[Path, int]]:
    """Return the folders of films that came with a run and when each was written; none of a run that is deleted."""
    try:
        return sorted((made.parent, made.stat().st_mtime_ns) for made in folder.glob("*/film.json"))
    except OSError:
        return []


def film_view(run: RunView, films: list[FilmEntry], key: str) -> None:
    """Draw the films of a run; a gesture draws this view again and nothing else of the page.

    Args:
        run: the run shown.
        films: of it, at least one.
        key: prefix of what is kept.
    """
    st.fragment(_view)(run, films, key)


def _view(run: RunView, films: list[FilmEntry], key: str) -> None:
    try:
        entry, colour = _controls(films)
        film = _film(str(entry.folder), entry.key)
        _draw(run, film, colour, key)
    except (EngineError, ScatterDataError) as error:
        error_state(error)


def _controls(films: list[FilmEntry]) -> tuple[FilmEntry, str]:
    """Draw the choice of a parameter and of a colour."""
    titles = {entry.name: entry.shown for entry in films}
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        chosen = films[0].name
        if len(films) > 1:
            chosen = one_of(
                "Parameter",
                list(titles),
                format_func=titles.get,
                default=chosen,
                key="film",
                persist_state="session",
                wrap=True,
                help="The parameter that the slider moves. Its frames were computed ahead.",
            )
        colour = one_of(
            "Colour",
            list(COLOURS),
            format_func=COLOURS.get,
            default="correct",
            key="filmcolour",
            persist_state="session",
            help="What the colour of a point says at the value shown. Shift is the distance to the expert's feature.",
        )
    return next((entry for entry in films if entry.name == chosen), films[0]), colour


def _draw(run: RunView, film: Film, choice: str, key: str) -> None:
    recipe = run.report.recipe
    states = film.shown(recipe)
    rows = hashlib.sha256(f"{film.tasks}{film.task.tobytes()}{film.index.tobytes()}".encode("utf-8", "replace"))
    view = f"{key}.film.{rows.hexdigest()[:12]}"
    empty = np.zeros((len(film), 2))
    panels = [Panel(film_state_title(state, recipe), SHAPES.get(state, "square"), empty) for state in states]
    atlas = images_of(film, run.report)
    content = f"{film.key}:{'+'.join(states)}"
    selection = linked_scatter(
        panels,
        key=view,
        content_key=content,
        content=lambda: film_packet(film, content, states, recipe),
        colour=film_colour(film, states, choice),
        thumbnails=atlas,
        height=340,
        noun=(kind_of(run.report).one, kind_of(run.report).many),
        film=_position(view, content_name(content), film, recipe),
    )
    if selection.indices:
        way_to_causes(run, film, selection.indices, view)
    st.caption(plain(called(_caption(film), kind_of(run.report))))
    if atlas is None and images_coming(film, run.report):
        refresh_when(lambda: not images_coming(film, run.report))


def _position(view: str, content: str, film: Film, recipe: Recipe) -> Mapping[str, Any]:
    """Return the frame to show: the browser's last, else the address's, else the run's own; the address follows."""
    told = (st.session_state.get(view) or {}).get("film")
    memory = st.session_state.get(f"{view}.at", {})
    own, asked = film.own_frame(recipe), st.query_params.get(AT)
    revision = int(memory.get("revision", 0))
    if _is_news(told, content, revision, film.last):
        frame, revision = told["frame"], told["revision"]
    elif memory.get("content") == content and memory.get("asked") == asked:
        frame = memory["frame"]
    else:
        named = film.frame_of(asked) if memory.get("content") in (None, content) else None
        frame, revision = own if named is None else named, revision + 1
    text = None if frame == own else film.texts[frame]
    if text is None:
        st.query_params.pop(AT, None)
    elif text != asked:
        st.query_params[AT] = text
    st.session_state[f"{view}.at"] = {"content": content, "frame": frame, "revision": revision, "asked": text}
    return {"at": frame, "revision": revision}


def _is_news(told: Any, content: str, revision: int, last: int) -> bool:
    """Tell whether a browser's message is newer than what is known, and of this film."""
    if not isinstance(told, Mapping) or told.get("key") != content:
        return False
    frame, number = told.get("frame"), told.get("revision")
    return isinstance(frame, int) and isinstance(number, int) and number > revision and 0 <= frame <= last


def _caption(film: Film) -> str:
    """Return the caption: what is drawn, how, and what to make of it."""
    document = film.document
    drawn = sum(task["drawn"] for task in document["tasks"])
    evaluated = sum(task["evaluated"] for task in document["tasks"])
    parts = [
        f"{drawn} of {evaluated:,} test images, {MAPS[document['map']['method']]} of all "
        f"states together; accuracies over all {evaluated:,}, "
        + ("each frame with its own seed" if document["place"] == SEED else f"seed {document['seed']}"),
        "between two frames points are interpolated",
        "trust is each frame's trustworthiness, 1 where all neighbours in the plane are neighbours in feature space",
        "2-D distances and sizes are not metric",
    ]
    return "; ".join(parts) + "." + (f" {document['chance']}" if document["chance"] else "")


def _asked(recipe: Recipe) -> dict[str, Any]:
    return FILM.reduced(recipe).model_dump(mode="json")


@st.cache_resource(max_entries=16, ttl="6h", show_spinner=False)
def _film(folder: str, key: str) -> Film:
    return read_film(Path(folder), key)
