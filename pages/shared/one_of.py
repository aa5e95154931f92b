"""A choice of exactly one thing, which the address holds."""

from collections.abc import Sequence
from typing import Any

import streamlit as st


def one_of(label: str, options: Sequence[Any], *, default: Any, key: str, help: str, **how: Any) -> Any:
    """Draw buttons side by side of which one is always chosen, and return it; the address holds the choice.

    Streamlit takes a parameter without a value, ``?key=``, for nothing chosen, which here cannot be: it is dropped, and
    stands for what is chosen at first.

    Args:
        label: of the buttons.
        options: that are offered.
        default: which is chosen at first.
        key: of the widget and of the parameter.
        help: said of the buttons.
        how: as for Streamlit's segmented control.
    """
    if st.query_params.get(key) == "":
        del st.query_params[key]
    chosen = st.segmented_control(
        label, options, default=default, key=key, help=help, required=True, bind="query-params", **how
    )
    return default if chosen is None else chosen
