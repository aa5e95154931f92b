"""Colours of states and tasks for both themes, and titles of states.

State = panel, task = colour: no figure tells both by colour. The states' colours keep apart under simulated colour
blindness (ΔE ≥ 18.6) and stand out from both backgrounds; several calibrators of one run share the colour of
``corrected`` and are told apart by pattern and dash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..catalog.titles import calibrator_title
from ..report import Report

Theme = Literal["light", "dark"]

STATES: dict[Theme, dict[str, str]] = {
    "light": {
        "pretrained": "#949494",
        "merged": "#D55E00",
        "corrected": "#0072B2",
        "multitask": "#008060",
        "kd4mtl": "#8A5A00",
        "expert": "#5F5F5F",
    },
    "dark": {
        "pretrained": "#7A7F85",
        "merged": "#F28E2B",
        "corrected": "#56B4E9",
        "multitask": "#4FC3A1",
        "kd4mtl": "#D9A441",
        "expert": "#B8B8B8",
    },
}
TITLES = {
    "pretrained": "Pretrained",
    "merged": "Merged",
    "multitask": "Multitask",
    "kd4mtl": "KD4MTL",
    "expert": "Expert",
}
PATTERNS = ("", "/", "x", ".", "-", "+", "|")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
TASKS: dict[Theme, tuple[str, ...]] = {
    "light": ("#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#AA4499"),
    "dark": ("#8A7BE8", "#88CCEE", "#44AA99", "#3FB56B", "#B5B54A", "#DDCC77", "#E07F8F", "#CF6BBE"),
}
INK = {"light": "#1C2024", "dark": "#ECEDEE"}
MUTED = {"light": "#5B636B", "dark": "#A3ABB3"}
GRID = {"light": "#E3E6E9", "dark": "#2E343A"}
SURFACE = {"light": "#FFFFFF", "dark": "#1E2226"}
GAP = {"light": "#EEF0F2", "dark": "#262B30"}

CIVIDIS = "Cividis"
PURPLE_ORANGE = {  # losses orange, gains purple, zero in the tone of the page
    "light": ("#B35806", "#E08214", "#FDB863", "#FEE0B6", "#F7F7F7", "#D8DAEB", "#B2ABD2", "#8073AC", "#542788"),
    "dark": ("#C2610C", "#A3520D", "#7C410F", "#52301A", "#2A2F35", "#3A3357", "#4F4380", "#6550A6", "#7C63C9"),
}


def state_title(state: str, report: Report) -> str:
    """Return the title of a state; of a calibrator its method's, and its name where it was given another one."""
    if state in TITLES or state not in report.calibrators:
        return TITLES.get(state, state)
    return calibrator_title(state, report.calibrators[state].method)


def state_colour(state: str, theme: Theme) -> str:
    """Return the hex colour of a state; every calibrator has the colour of ``corrected``."""
    return STATES[theme].get(state, STATES[theme]["corrected"])


def state_pattern(state: str, states: Sequence[str]) -> str:
    """Fill pattern, the second cue that tells calibrators (and the pretrained model from the expert) apart."""
    return "/" if state == "pretrained" else PATTERNS[_rank(state, states) % len(PATTERNS)]


def fill(state: str, states: Sequence[str], theme: Theme) -> dict[str, Any]:
    """Return Plotly's marker of a bar: the state's colour, hatched where the colour alone does not tell it apart."""
    hatch = {"shape": state_pattern(state, states), "fillmode": "overlay", "fgcolor": SURFACE[theme], "fgopacity": 0.75}
    return {"color": state_colour(state, theme), "pattern": {**hatch, "size": 6, "solidity": 0.22}}


def state_dash(state: str, states: Sequence[str]) -> str:
    """Return the line dash, the second cue that tells calibrators apart in curves."""
    return DASHES[_rank(state, states) % len(DASHES)]


def task_colours(tasks: Sequence[str], theme: Theme) -> dict[str, str]:
    """Return task → hex colour, in the given order; with more than eight tasks the colours repeat."""
    palette = TASKS[theme]
    return {task: palette[number % len(palette)] for number, task in enumerate(tasks)}


def diverging(theme: Theme) -> list[list[float | str]]:
    """Return Plotly's colour scale for signed values, zero in the middle."""
    stops = PURPLE_ORANGE[theme]
    return [[number / (len(stops) - 1), stop] for number, stop in enumerate(stops)]


def _rank(state: str, states: Sequence[str]) -> int:
    """Return the number of a calibrator among the calibrators, 0 for every other state."""
    calibrators = [name for name in states if name not in TITLES]
    return calibrators.index(state) if state in calibrators else 0
