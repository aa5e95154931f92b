"""The third answer: at which depth merged and expert part, by distance, CKA and each block's own verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...analysis.written import read_array
from ...errors import DataError
from ...report import Report
from ...rounding import rounded
from ..block_bias import SYMBOLS, block_figure
from ..drawing import Drawing, compose, listed, plain
from ..palette import Theme, state_colour, state_title
from .answer import Answer, Caption, Scope, share

APART = 5.0  # points by which two verdicts differ
STATES = ("pretrained", "merged", "expert")
OUTPUT = "Output"


def lens_answer(document: Mapping[str, Any], report: Report, scope: Scope, theme: Theme) -> Answer:
    """Return from which block on the merged model's verdict and activations are not the expert's.

    Raises:
        DataError: the view has no verdicts, or none of the scope's images.
    """
    part = document["tasks"][scope.task]
    if "lens" not in part or "expert" not in part["lens"]["said"]:
        raise DataError("The zoo has no head for this task, so its blocks have no verdict.")
    known = part["lens"]
    labels = read_array(known["labels"])
    mask = scope.mask(read_array(known["index"]), labels)
    if not mask.any():
        raise DataError(f"None of {scope.words} is among the {part['images']} images that this was measured on.")
    said = {state: read_array(known["said"][state])[:, mask] for state in STATES if state in known["said"]}
    right = {state: np.array([share(row == labels[mask]) for row in rows]) for state, rows in said.items()}
    stations = [*(str(block + 1) for block in range(part["blocks"])), OUTPUT]
    gaps = right["merged"] - right["expert"]
    apart = np.flatnonzero(np.abs(gaps[:-1]) > APART)
    cka = part["states"]["merged"]["class"]["cka"]
    end = part["states"]["merged"]["features"]
    begins = f"the verdicts part after block {stations[apart[0]]}" if len(apart) else "the verdicts part at the output"
    if abs(gaps[-1]) <= APART and not len(apart):
        begins = f"the verdicts stay within {rounded(APART, 0)} points of each other"
    least = int(np.argmin(gaps[:-1])) if len(gaps) > 1 else 0
    sentence = (
        f"Read out after every block, {begins}: after block {stations[least]} the merged model is right for "
        f"{rounded(right['merged'][least])} %, the expert for {rounded(right['expert'][least])} %, at the output for "
        f"{rounded(right['merged'][-1])} and {rounded(right['expert'][-1])} %."
    )
    if all(value is not None for value in (cka[0], cka[-1], end["cka"])):
        sentence += (
            f" Over the whole task CKA with the expert goes from {rounded(cka[0], 2)} after block 1 to "
            f"{rounded(cka[-1], 2)} after block {len(cka)} and {rounded(end['cka'], 2)} at the output."
        )
    drawing = _figure(right, stations, report, scope, theme)
    whole = (block_figure(document, report, "cka", "class", [scope.task], theme),)
    whole += (block_figure(document, report, "l1", "class", [scope.task], theme),)
    control = "The pretrained model is the control: it never saw the task, and its lines show what depth alone does."
    unit = "Percent right, each block's class token through the encoder's own read-out (logit lens)"
    count, available = int(mask.sum()), _available(part, scope, mask)
    captions = (
        Caption(unit, count, available),
        Caption("Linear CKA of the class token with the expert's, whole task", part["images"], part["available"]),
        Caption("L1 of the class token to the expert's, whole task", part["images"], part["available"]),
    )
    return Answer(3, sentence, (drawing, *whole), unit, count, available, control, captions=captions)


def _available(part: Mapping[str, Any], scope: Scope, mask: np.ndarray) -> int:
    if scope.images:
        return len(scope.images)
    return int(part["available"]) if scope.label is None else int(mask.sum())


def _figure(
    right: Mapping[str, np.ndarray], stations: list[str], report: Report, scope: Scope, theme: Theme
) -> Drawing:
    lines = [
        go.Scatter(
            name=plain(state_title(state, report)),
            x=stations,
            y=values.tolist(),
            mode="lines+markers",
            line={
                "color": state_colour(state, theme),
                "width": 2.4,
                "dash": "dot" if state == "pretrained" else "solid",
            },
            marker={"size": 8, "symbol": SYMBOLS[number]},
            hovertemplate="%{y:.1f} %",
        )
        for number, (state, values) in enumerate(right.items())
    ]
    figure = compose(
        lines,
        theme,
        height=320,
        legend=True,
        hovermode="x unified",
        xaxis={"title": "After block", "type": "category", "showgrid": False},
        yaxis={"title": "Right by its own verdict (%)", "range": [0, 104]},
    )
    rows = [
        {"state": state, "station": station, "right": value}
        for state, values in right.items()
        for station, value in zip(stations, values.tolist(), strict=True)
    ]
    ends = listed([(state_title(state, report), float(values[-1])) for state, values in right.items()])
    alt = f"Accuracy of each block's own verdict on {scope.title}. At the output: {ends}."
    return Drawing(figure, pd.DataFrame(rows), alt, f"diagnosis-lens-{scope.task}")
