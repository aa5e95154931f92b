"""Tables on pages: nothing in them is computed by a spreadsheet, be it downloaded or copied."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st
from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

from engine.outgoing import csv_cell


def draw_table(data: pd.DataFrame | Sequence[Mapping[str, Any]], **options: Any) -> Any:
    """Draw a table as ``st.dataframe`` does; its texts are shown as they are taken out of it.

    Args:
        data: the table, or its rows.
        options: those of ``st.dataframe``.
    """
    return st.dataframe(_neutral(pd.DataFrame(data)), **options)


def edit_table(data: pd.DataFrame, **options: Any) -> pd.DataFrame:
    """Draw a table as ``st.data_editor`` does and return what it holds; texts given are shown as in ``draw_table``.

    Args:
        data: the table.
        options: those of ``st.data_editor``.
    """
    shown = _neutral(data)
    meant = {name: dict(zip(shown[name], data[name], strict=True)) for name in data if not _is_plain(data[name].dtype)}
    found = st.data_editor(shown, **options)
    return found.assign(**{name: [was.get(cell, cell) for cell in found[name]] for name, was in meant.items()})


def _neutral(found: pd.DataFrame) -> pd.DataFrame:
    texts = [name for name in found if not _is_plain(found[name].dtype)]
    found = found.assign(**{name: found[name].map(_cell) for name in texts}) if texts else found
    return found.rename(columns=csv_cell)


def _is_plain(kind: Any) -> bool:
    return is_numeric_dtype(kind) or is_bool_dtype(kind) or is_datetime64_any_dtype(kind)


def _cell(value: Any) -> Any:
    return [csv_cell(part) for part in value] if isinstance(value, (list, tuple)) else csv_cell(value)
