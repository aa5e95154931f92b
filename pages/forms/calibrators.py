"""The calibrators of the recipe's form: a card each."""

from typing import Any

import streamlit as st

from engine.catalog import CALIBRATORS
from pages.forms.params import about, complain, param_fields, seeded
from pages.shared.chrome import plain

CARDS = "form.cards"  # the cards by their keys, in the session; no widget owns this key


def calibrator_cards(calls: list[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    """Draw a card per calibrator; they are alternatives, each repairs the merged model by itself.

    Args:
        calls: those to begin with.
        prefix: of the widgets' keys.

    Returns:
        The calls that the cards hold.
    """
    st.session_state.setdefault(CARDS, {})
    cards: dict[str, dict[str, Any]] = st.session_state[CARDS]
    if f"{prefix}cards" not in st.session_state:
        cards.clear()
        cards.update({f"c{number}": dict(call) for number, call in enumerate(calls) if call["method"] in CALIBRATORS})
        st.session_state[f"{prefix}cards"] = True
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(
            "Calibrators", width="stretch", help="Small modules that repair the features. Alternatives, not a chain."
        )
        st.menu_button(
            "Add",
            list(CALIBRATORS),
            format_func=lambda name: CALIBRATORS[name].title,
            key=f"{prefix}add",
            icon=":material/add:",
            type="tertiary",
            on_click=_add_card,
            args=(prefix,),
        )
    return [_calibrator(ident, card, prefix) for ident, card in list(cards.items())]


def _calibrator(ident: str, card: dict[str, Any], prefix: str) -> dict[str, Any]:
    row, key = CALIBRATORS[card["method"]], f"{prefix}{ident}"
    name = card.get("name") or row.name
    with st.expander(f"{plain(row.title)}" + ("" if name == row.name else f" · {plain(name)}"), key=f"{key}.card"):
        params = param_fields(row, card.setdefault("params", {}), key)
        complain(row, params)
        card["name"] = st.text_input(
            "Name", key=seeded(f"{key}.name", name), max_chars=40, help="Lower-case letters, digits and underscores."
        )
        card["on"] = st.segmented_control(
            "Repairs",
            ["merged", "pretrained"],
            key=seeded(f"{key}.on", card.get("on", "merged")),
            required=True,
            help="On the pretrained model it is a control: what does the calibrator achieve without any merging?",
        )
        with st.container(horizontal=True, vertical_alignment="center"):
            about(row, f"{key}.about")
            st.button(
                "Remove",
                key=f"{key}.remove",
                icon=":material/delete:",
                type="tertiary",
                on_click=_remove_card,
                args=(ident,),
            )
    return {"name": card["name"], "method": row.name, "params": params, "on": card["on"]}


def _add_card(prefix: str) -> None:
    method = st.session_state.get(f"{prefix}add")
    if method not in CALIBRATORS:
        return
    cards = st.session_state[CARDS]
    names = {card.get("name") or card["method"] for card in cards.values()}
    name = next(n for n in (method, *(f"{method}_{i}" for i in range(2, 99))) if n not in names)
    ident = f"c{max((int(ident[1:]) for ident in cards), default=-1) + 1}"
    cards[ident] = {"method": method, "name": name}


def _remove_card(ident: str) -> None:
    st.session_state[CARDS].pop(ident, None)
