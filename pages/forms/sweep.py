"""The form of a sweep: what is varied, over which values, and what that costs."""

from pathlib import Path
from typing import Any

import streamlit as st

from engine.catalog import resolve
from engine.catalog.titles import recipe_title
from engine.catalog.words import choice_title
from engine.errors import EngineError, RecipeError
from engine.pipeline.preflight.sweep import SweepEstimate, estimate_sweep
from engine.recipe import Recipe, parse_recipe
from engine.rounding import bytes_text
from engine.sweeps import Place, SweepRequest, place_title, places
from engine.sweeps.grid import parse_values, value_text
from pages.forms.recipe import FIRST_RECIPE, RECIPE
from pages.forms.recipes import check
from pages.shared.chrome import duration, plain
from pages.shared.state import find_current, store

NONE = ""  # no second place
KEY = "sweep.form"
METHODS_FIRST = ("weight_average", "task_arithmetic", "ties", "dare", "tsv_m")
STEPS = 10  # values of a first range


def sweep_form() -> SweepRequest | None:
    """Draw the form; returns a valid request, None where something is wrong (and said)."""
    recipe, origin = _base()
    st.caption(f"{origin}: {plain(described(recipe))}. Everything that is not varied stays as it is there.")
    found = {place.place: place for place in places(recipe)}
    first = _axis("Vary", "first", found, recipe)
    rest = {name: place for name, place in found.items() if name != first[0]}
    second = _axis("And", "second", rest, recipe, optional=True)
    settings = [setting for setting in (first, second) if setting[0]]
    if any(problem for _, _, problem in settings):
        return None
    try:
        listed = [{"place": place, "values": values} for place, values, _ in settings]
        request = SweepRequest.parse({"recipe": recipe.model_dump(mode="json"), "settings": listed})
        cost = _cost(request.model_dump_json(), request)
    except EngineError as error:
        st.error(plain(error), icon=":material/error:")
        return None
    merges = "one merged model" if cost.merges == 1 else f"{cost.merges} merged models"
    st.caption(
        f":material/timer: **{cost.runs} run{'s' * (cost.runs != 1)}**, {merges} · about {duration(cost.seconds)} · "
        f"{bytes_text(cost.disk_bytes)} disk · {plain(f'by {cost.basis}')}. What runs share is computed once."
    )
    return request


def _base() -> tuple[Recipe, str]:
    """Return the recipe that is varied: as the Lab has it, else that of the run shown."""
    document = st.session_state.get(RECIPE)
    recipe, _ = check(document) if document else (None, [])
    if recipe is not None:
        return recipe, "The Lab's settings"
    run = find_current()
    try:
        if run is not None:
            return resolve(run.report.recipe), "The settings of the run shown"
    except EngineError:
        pass
    return resolve(parse_recipe(FIRST_RECIPE)), "The first settings of the Lab"


def described(recipe: Recipe) -> str:
    """Return a recipe in one line, with zoo and seeds."""
    seeds = f"seed{'s' if len(recipe.seeds) > 1 else ''} {', '.join(map(str, recipe.seeds))}"
    return f"{recipe_title(recipe)} on {Path(recipe.zoo).name}, {seeds}"


def _axis(
    label: str, name: str, found: dict[str, Place], recipe: Recipe, optional: bool = False
) -> tuple[str, list[Any], str]:
    """Return one place and its values; with the problem where there is one."""
    options = ([NONE] if optional else []) + list(found)
    key = f"{KEY}.{name}"
    if st.session_state.get(key) not in options:
        st.session_state[key] = options[0]
    columns = st.columns((2, 3), vertical_alignment="bottom")
    place = columns[0].selectbox(
        label,
        options,
        format_func=lambda option: place_title(recipe, option) if option else "nothing else",
        key=key,
        persist_state="session",
        help=plain(found[st.session_state[key]].description) if st.session_state[key] in found else None,
    )
    if not place:
        return "", [], ""
    with columns[1]:
        values, problem = _values(found[place], f"{key}.{recipe.merge.method}.{place}")
    if problem:
        st.error(plain(problem), icon=":material/error:")
    return place, values, problem


def _choice_text(value: str | bool) -> str:
    """Return a method's title, else a choice's."""
    text = value_text(value)
    return choice_title(text) if text == value else text


def _values(place: Place, key: str) -> tuple[list[Any], str]:
    if place.kind == "choice":
        default = [place.value] if place.place != "merge.method" else [m for m in METHODS_FIRST if m in place.choices]
        chosen = st.multiselect(
            "Values",
            place.choices,
            default=default,
            format_func=_choice_text,
            key=key,
            persist_state="session",
            placeholder="Choose values",
            help="The recipe is run once for each of them.",
        )
        return list(chosen), "" if chosen else "Choose at least one value."
    text = st.text_input(
        "Values",
        first_values(place),
        key=key,
        persist_state="session",
        help=f"from:to:step, or values separated by commas. {plain(_bounds(place))}",
    )
    try:
        values = parse_values(text or "")
        if not values:
            raise RecipeError("Give at least one value, as from:to:step or separated by commas.")
    except EngineError as error:
        return [], str(error)
    return values, ""


def first_values(place: Place) -> str:
    """Return values to start from: doublings of a whole number, ten even steps of a bounded one."""
    if place.kind == "whole":
        value = max(int(place.value or 1), 1)
        low, high = place.low or 1, place.high if place.high is not None else float("inf")
        numbers = sorted({min(max(int(value * factor), low), high) for factor in (0.25, 0.5, 1, 2, 4)} - {0})
        return ", ".join(f"{number:g}" for number in numbers)
    value = float(place.value or 0.0)
    if place.high is None or place.low is None or not 0 <= value <= 1 or place.high < 1 or value < 0.01:
        return ", ".join(f"{max(value, 1e-6) * factor:g}" for factor in (0.25, 0.5, 1, 2, 4))
    step = 1 / STEPS
    low = step if place.open_low or place.low < 0 else max(place.low, 0.0)
    return f"{low:g}:{1 - step if place.open_high and place.high <= 1 else 1:g}:{step:g}"


def _bounds(place: Place) -> str:
    low = None if place.low is None else f"{'more than' if place.open_low else 'at least'} {place.low:g}"
    high = None if place.high is None else f"{'less than' if place.open_high else 'at most'} {place.high:g}"
    text = " and ".join(part for part in (low, high) if part)
    return f"{'Whole numbers' if place.kind == 'whole' else 'Numbers'}{f', {text}' if text else ''}."


@st.cache_data(max_entries=32, ttl="2m", show_spinner=False)
def _cost(document: str, _request: SweepRequest) -> SweepEstimate:
    return estimate_sweep(_request, store())
