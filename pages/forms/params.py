"""Widgets for a method's parameters, made from the fields of its params model."""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import streamlit as st
from pydantic.fields import FieldInfo

from engine.catalog import MergeRow, Row, TransformRow, is_parity, params_of
from engine.catalog.words import at_inference, choice_title, cost_of, needs_of
from engine.errors import RecipeError
from engine.zoo.modalities import USUAL, Modality
from pages.shared.chrome import plain
from pages.shared.following import key_with, last_key
from pages.shared.nouns import called

SLIDER_SPAN = 7.0  # bounded numbers of at most this range get a slider, if their default lies on its steps
TYPED_WIDTH = 72  # px of the field beside a slider
COMMON = ("steps", "eta")  # inherited parameters that are shown at once


def method_notes(row: Row, kind: Modality = USUAL) -> None:
    """Draw a method's summary, equation, source and needs, and where paper and code differ.

    Args:
        row: the method.
        kind: of the data that it is used on.
    """
    st.write(plain(row.summary))
    st.latex(row.equation)
    link = f" [Paper]({row.url})" if row.url.startswith("https://") else ""
    st.caption(f"{plain(row.source)}{link}")
    st.caption(called(f"Needs {needs_of(row)}.", kind))
    if row.departure:
        st.caption(f"Departure from the paper: {plain(row.departure)}")


def about(row: Row, key: str) -> None:
    """Draw a button that tells of a method: its notes, its cost and what it needs at inference."""
    with st.popover("", icon=":material/info:", type="tertiary", help=f"About {plain(row.title)}", key=key):
        st.markdown(f"**{plain(row.title)}**")
        method_notes(row)
        if isinstance(row, (MergeRow, TransformRow)):
            st.caption(plain(f"Cost: {cost_of(row)}."))
            st.caption(plain(f"At inference it needs {at_inference(row)}."))
            st.page_link("pages/methods.py", label="All methods and what they measured", icon=":material/table_rows:")


def complain(row: Row, params: dict[str, Any]) -> None:
    """Say what is wrong with a method's parameters, right under them."""
    try:
        params_of(row, params)
    except RecipeError as error:
        st.error(plain(error), icon=":material/error:")


def param_fields(row: Row, memory: dict[str, Any], key: str) -> dict[str, Any]:
    """Draw a method's parameters and return their values; those without effect beside the others are not drawn.

    Args:
        row: the method.
        memory: values to start from, kept up to date; what is missing has its default.
        key: prefix of the widgets' keys.
    """
    fields = row.params.model_fields
    values = {
        name: _held_value(field, f"{key}.{name}", memory.get(name, _default(field))) for name, field in fields.items()
    }
    if row.presets:
        _presets(row, values, memory, key)
    shown = [name for name, field in fields.items() if not is_parity(field)]
    drawn = [name for name in row.in_effect(values) if name in shown]
    first = [name for name in drawn if name in row.params.__annotations__ or name in COMMON]
    rest = [name for name in drawn if name not in first]
    values |= {name: _field(row, name, values[name], f"{key}.{name}") for name in first}
    if rest and st.toggle(
        "Show advanced settings",
        key=seeded(f"{key}._all", False),
        help="Shows the parameters that seldom need a change, such as those of the optimiser.",
    ):
        values |= {name: _field(row, name, values[name], f"{key}.{name}") for name in rest}
    kept = [name for name, field in fields.items() if name not in shown and values[name] != _default(field)]
    if kept:
        told = ", ".join(f"{fields[name].title} = {values[name]}" for name in kept)
        st.caption(plain(f"The recipe also repeats published code: {told}."))
    memory.clear()
    memory.update(values)
    return values


def seeded(key: str, value: Any) -> str:
    """Give a widget its first value, unless it has one already; returns the key."""
    if key not in st.session_state:
        st.session_state[key] = value
    return key


def _presets(row: Row, values: Mapping[str, Any], memory: dict[str, Any], key: str) -> None:
    """Draw published settings; choosing one sets the parameters it names and gives the others their defaults.

    A menu holds no state: a select that follows the parameters would be sent back by the browser a moment late, and
    count as a choice.
    """
    fields = row.params.model_fields
    presets = {preset.name: preset for preset in row.presets}
    defaults = {name: _default(field) for name, field in fields.items()}
    match = next((preset.title for preset in row.presets if values == {**defaults, **preset.params}), "")

    def choose() -> None:
        chosen = presets.get(st.session_state[f"{key}._preset"])
        if chosen is not None:
            memory.update({**defaults, **chosen.params})
            for name, field in fields.items():
                st.session_state[f"{key}.{name}"] = _widget_value(field, memory[name])

    sources = "; ".join(f"{preset.title}: {preset.source}" for preset in row.presets if preset.source)
    st.menu_button(
        plain(match) if match else "Presets",
        list(presets),
        format_func=lambda name: presets[name].title,
        key=f"{key}._preset",
        icon=":material/bookmark:" if match else ":material/bookmark_border:",
        width="stretch",
        on_click=choose,
        help=f"Published settings. {plain(sources)}",
    )


def hint_of(row: Row, field: FieldInfo) -> str:
    """Return a parameter's description, with a link to the paper of its method."""
    link = f"[{plain(row.title)}: the paper]({row.url})" if row.url.startswith("https://") else plain(row.source)
    return f"{plain(field.description or field.title or '')} {link}"


def _field(row: Row, name: str, value: Any, key: str) -> Any:
    """Draw one widget; returns the value as the params model wants it."""
    field = row.params.model_fields[name]
    label, hint = field.title or name, hint_of(row, field)
    low, high = _bound(field, "ge"), _bound(field, "le")
    seeded(key, _widget_value(field, value))
    choices = _choices(field)
    if choices:
        if len(choices) <= 3 and sum(map(len, choices)) <= 22:
            return st.segmented_control(label, choices, format_func=choice_title, key=key, help=hint, required=True)
        return st.selectbox(label, choices, format_func=choice_title, key=key, help=hint)
    several = _several(field)
    if several:
        return st.pills(label, several, format_func=choice_title, selection_mode="multi", key=key, help=hint)
    if field.annotation is bool:
        return st.toggle(label, key=key, help=hint)
    if field.annotation is int:
        step = 100 if isinstance(value, int) and value >= 500 else 1
        return st.number_input(
            label, *(None if b is None else int(b) for b in (low, high)), step=step, key=key, help=hint
        )
    track = _track(field)
    if track:
        first, last, step = track
        further = low is not None and high is not None and (low < first or high > last)
        first, last = reaching(key, first, last, float(value))
        if not further:
            return st.slider(label, first, last, step=step, key=key, help=hint)
        return _slider_and_field(label, key, (first, last), (float(low), float(high)), step, hint)
    return _parsed(st.text_input(label, key=key, help=hint))


def reaching(key: str, first: float, last: float, value: float) -> tuple[float, float]:
    """Return a slider's track that reaches the value and all it reached before: one whose ends move loses its value."""
    kept = f"{key}.reach"
    lowest, highest = st.session_state.get(kept, (first, last))
    st.session_state[kept] = min(lowest, value), max(highest, value)
    return st.session_state[kept]


def _slider_and_field(
    label: str, key: str, track: tuple[float, float], bounds: tuple[float, float], step: float, hint: str
) -> float:
    """Draw a slider and beside it a field, for values that the slider's track is too short for; returns the value.

    The session holds it under ``key``; the two widgets follow it.
    """
    slider, field = f"{key}.slider", f"{key}.typed"
    held = float(st.session_state[key])

    def take(name: str, own: str) -> None:
        if own == last_key(name):
            st.session_state[key] = float(st.session_state[own])

    with st.container(horizontal=True, vertical_alignment="bottom"):
        own = key_with(slider, held)
        st.slider(label, *track, step=step, key=own, on_change=take, args=(slider, own), help=hint)
        own = key_with(field, held)
        st.number_input(
            f"{label}, typed",
            *bounds,
            step=step,
            format="%.4g",
            key=own,
            on_change=take,
            args=(field, own),
            label_visibility="collapsed",
            width=TYPED_WIDTH,
            help="The same value, for typing; it may lie beyond the slider's track.",
        )
    return held


def _default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True)


def _held_value(field: FieldInfo, key: str, remembered: Any) -> Any:
    """Return the value that a widget holds at this moment, else the remembered one."""
    if key not in st.session_state:
        return remembered
    held = st.session_state[key]
    if _several(field):
        return list(held or ())
    return _parsed(held) if isinstance(held, str) and not _choices(field) else held


def _widget_value(field: FieldInfo, value: Any) -> Any:
    """Return a value in the form that its widget holds."""
    if field.annotation in (int, bool) or _choices(field):
        return value
    if _several(field):
        return [part for part in _several(field) if part in value]
    if _track(field):
        return float(value)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _parsed(text: str | None) -> Any:
    """Return a number, a list of numbers or a word, as it was typed; the params model says whether it is valid."""
    text = (text or "").strip()
    if "," in text:
        return [_parsed(part) for part in text.split(",") if part.strip()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text.lower() in ("", "none") else text


def _track(field: FieldInfo) -> tuple[float, float, float] | None:
    """Return first, last and step of a tightly bounded number's slider; None where it could not hit the default."""
    low, high = (_bound(field, *names) for names in (("ge", "gt"), ("le", "lt")))
    default = _default(field)
    if field.annotation is not float or low is None or high is None or high - low > SLIDER_SPAN:
        return None
    if low < 0 <= default <= 1 < high:  # a merging coefficient: from nothing to all of it, or twice that
        return 0.0, 1.0 if default < 1 else min(2.0, high), 0.01
    step = 0.05 if high - low > 1 else 0.01
    if abs(default / step - round(default / step)) > 1e-6:
        return None
    first = low if _bound(field, "ge") is not None else low + step
    last = high if _bound(field, "le") is not None else high - step
    return float(first), float(last), step


def _choices(field: FieldInfo) -> list[str] | None:
    return list(get_args(field.annotation)) if get_origin(field.annotation) is Literal else None


def _several(field: FieldInfo) -> list[str]:
    """Return the words of which a parameter takes any number; empty for other parameters."""
    if get_origin(field.annotation) is not tuple:
        return []
    part = get_args(field.annotation)[0]
    return list(get_args(part)) if get_origin(part) is Literal else []


def _bound(field: FieldInfo, *names: str) -> float | None:
    return next((getattr(item, name) for item in field.metadata for name in names if hasattr(item, name)), None)
