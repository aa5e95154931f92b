"""Tables of an alignment: the experts' inner products with the base, and the units that moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from .connection import group_title
from .drawing import beside


def aligned_table(document: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row an expert: its inner product with the base before and after, and how far its features are apart.

    Which expert one was made from is said where they are listed beside it.

    Args:
        document: what an alignment left: records by the names that the experts are listed by.
    """
    parts = ("expert", "before", "after", "apart")
    table = pd.DataFrame(
        [{"listed": name, **{part: record[part] for part in parts}} for name, record in document.items()]
    )
    return table if (table["listed"] != table["expert"]).any() else table.drop(columns="expert")


def moved_table(document: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row a group of units: in percent, how many of each expert moved."""
    groups = dict.fromkeys(group for record in document.values() for group in record["moved"])
    shares = [[100 * record["moved"].get(group, 0.0) for group in groups] for record in document.values()]
    columns = dict(zip(beside(("group",), document), shares, strict=True))
    return pd.DataFrame({"group": [group_title(group) for group in groups], **columns})
