"""The receipt of a merge as a table, and its shares layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from .weight_measures import LayerMeasure

COLUMNS = {
    "share": "Share of the merged vector",
    "cosine": "Cosine",
    "kept": "Kept",
    "trimmed": "Trimmed",
    "outvoted": "Outvoted",
    "dropped": "Dropped",
    "unmoved": "Not moved",
}
PERCENT = tuple(name for name in COLUMNS if name != "cosine")
SHARES = LayerMeasure(
    "Share of the merged vector",
    "percent",
    "⟨c, m⟩ / ⟨m, m⟩: the length of the expert's contribution c along the merged vector m. Shares of a layer sum to "
    "100 %; one below 0 points against the merged vector.",
    lambda arrays: np.where(arrays["merged"] > 0, 100 * arrays["share"], np.nan),
    signed=True,
    digits=1,
)


def receipt_table(document: Mapping[str, Any], titles: Sequence[str] = ()) -> pd.DataFrame:
    """Return one row an expert over all layers: shares and fates in percent; without shares where there are none.

    Args:
        document: a receipt.
        titles: of the experts, in its order; their names by default.
    """
    experts = document.get("total", {}).get("experts", {})
    rows = []
    for title, row in zip(titles or experts, experts.values(), strict=True):
        values = {name: row[name] for name in COLUMNS}
        rows.append({"expert": title} | {n: v if v is None or n not in PERCENT else 100 * v for n, v in values.items()})
    table = pd.DataFrame(rows, columns=["expert", *COLUMNS])
    return table if document["attribution"] != "none" else table.drop(columns=["share", "trimmed", "outvoted"])


def receipt_arrays(document: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return shares (L, K) and the squared norm of the merged vector (L, 1); shares without a value are NaN."""
    shares = [experts["share"] for experts in document["experts"].values()]
    return {
        "share": np.array(shares, float).T,
        "merged": np.square(np.array(document["norm"], float))[:, None],
    }
