"""Making another film of a run: a parameter, its ends, and a button."""

import numpy as np
import streamlit as st

from engine.catalog import resolve
from engine.pipeline.preview.request import drawn_parts, trained_parts
from engine.pipeline.views.film import FILM, PER_TASK
from engine.recipe import Recipe
from engine.sweeps import places
from engine.sweeps.frames import EXPERTS, SEED, experts_can_join, film_title
from pages.features.film import MAPS
from pages.shared.on_demand import view_on_demand
from pages.shared.state import RunView

FRAMES = 11
MOST = 41
WIDEST = 1.0  # end of a number's range where its bounds say nothing else
DIGITS = 4
SEEDS = 3  # training seeds of a film that shows chance alone


def film_maker(run: RunView, key: str) -> None:
    """Draw the choice of a parameter and its ends, and ask for the film; the film appears with those that there are.

    Args:
        run: the run shown.
        key: prefix of the widgets.
    """
    recipe = resolve(run.report.recipe)
    ends = _ends(recipe, len(run.report.experts))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        place = st.selectbox(
            "Parameter",
            list(ends),
            format_func=lambda name: film_title(recipe, name),
            key=f"{key}.place",
            width=300,
            help="What changes from frame to frame; everything else stays as in the run shown.",
        )
        low, high, whole = ends[place]
        number, step = (int, 1) if whole else (float, 0.05)
        start = st.number_input(
            "From",
            value=number(low),
            step=step,
            key=f"{key}.{place}.from",
            width=130,
            help="The parameter's value in the first frame.",
        )
        stop = st.number_input(
            "To",
            value=number(high),
            step=step,
            key=f"{key}.{place}.to",
            width=130,
            help="The parameter's value in the last frame.",
        )
        plane = st.selectbox(
            "Map",
            list(MAPS),
            format_func=MAPS.__getitem__,
            key=f"{key}.map",
            width=110,
            help="PCA places every frame exactly. t-SNE and UMAP are fitted to what stands still and to both end "
            "frames; the others are placed into that map, and each says how far to trust it.",
        )
        frames = st.number_input(
            "Frames",
            2,
            MOST,
            FRAMES,
            key=f"{key}.frames",
            width=110,
            help="Values at equal distances from the first to the last; each is merged and measured.",
        )
    values = frame_values(start, stop, int(frames), whole)
    if len(values) < 2:
        st.caption("A film needs two values at least: choose another end.")
        return
    asked = FILM.ask(run.report.recipe, place=place, values=values, map=plane)
    takes = f"{len(values)} frames; merged, repaired and measured on at most {PER_TASK} images a task."
    if place == SEED:
        takes += " Nothing changes but the training seed: how far points move there is chance."
    folder = view_on_demand(
        run,
        FILM,
        asked,
        key=f"{key}.make",
        label="Make the film",
        icon=":material/movie:",
        takes=takes,
        title=f"Film over {film_title(recipe, place)}" + ("" if plane == "pca" else f", {MAPS[plane]}"),
        unasked=False,
    )
    if folder is not None:
        st.caption(f"There is a film over {film_title(recipe, place)} with these frames: choose it above.")


def frame_values(start: float, stop: float, frames: int, whole: bool) -> list[float] | list[int]:
    """Return values at equal distances, each once; whole numbers where the parameter takes no others."""
    spread = np.linspace(start, stop, frames)
    values = [round(value) for value in spread] if whole else [round(float(value), DIGITS) for value in spread]
    return list(dict.fromkeys(values))


def _ends(recipe: Recipe, experts: int) -> dict[str, tuple[float, float, bool]]:
    """Return the places that a film may vary: place → first and last value, and whether only whole numbers are."""
    found: dict[str, tuple[float, float, bool]] = {}
    for place in places(recipe):
        if place.kind == "choice" or not isinstance(place.value, int | float):
            continue
        low = place.low if place.low is not None and place.low > -WIDEST else 0
        high = place.high if place.high is not None and place.high <= WIDEST else max(2 * place.value, WIDEST)
        found[place.place] = (low, max(high, low + 1), place.kind == "whole")
    if experts > 1 and experts_can_join(recipe):
        found[EXPERTS] = (1, experts, True)
    if recipe.calibrators or trained_parts(recipe) or drawn_parts(recipe):
        found[SEED] = (0, SEEDS - 1, True)
    return found
