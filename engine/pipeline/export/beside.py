"""Parts that come with the app beside an example: a sweep of its recipe, and coefficients learned on its experts."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from ...catalog import resolve
from ...recipe import MethodCall, Recipe
from ...report import Report, read_report
from ...store import Store
from ...sweeps.table import FILE as TABLE
from ...sweeps.table import SweepTable, point_of
from ...types import Progress
from ..local import run_recipe, run_sweep
from ..viewing.shipped import LEARNED, SWEEP

REPORT = "report.json"
LAYER_WISE = MethodCall(method="adamerging", params={"granularity": "layer"})
LWPTV = MethodCall(method="lwptv", params={"eta": 0.7})
LEARNING: dict[str, dict[str, Any]] = {  # name → what of the example's recipe is replaced
    "adamerging": {"merge": LAYER_WISE, "transforms": ()},
    "lwptv-adamerging": {"merge": LAYER_WISE, "transforms": (LWPTV,)},
}
SWEEPS = {  # example → place and its values
    "task-arithmetic": ("merge.params.scaling", tuple(round(0.1 * step, 1) for step in range(11))),
    "text-task-arithmetic": ("merge.params.scaling", tuple(round(0.1 * step, 1) for step in range(11))),
}


def build_beside(name: str, recipe: Recipe, store: Store, out: Path, progress: Progress) -> None:
    """Make what comes beside an example, if it is one that something comes beside.

    Args:
        name: of the example.
        recipe: of the example.
        store: where runs are computed.
        out: the example's folder, with its report.
        progress: told how far each run is.
    """
    if name not in SWEEPS:
        return
    place, values = SWEEPS[name]
    table = through(run_sweep(recipe, [(place, values)], store, progress=progress), read_report(out))
    (out / SWEEP).mkdir(exist_ok=True)
    (out / SWEEP / TABLE).write_text(table.model_dump_json() + "\n", encoding="utf-8")
    for learned, asked in learning(recipe).items():
        with tempfile.TemporaryDirectory(dir=out, prefix=".building-") as scratch:
            run_recipe(asked, store, out=Path(scratch) / "run", progress=progress)
            target = out / LEARNED / learned
            target.mkdir(parents=True, exist_ok=True)
            shutil.move(Path(scratch) / "run" / REPORT, target / REPORT)


def through(table: SweepTable, report: Report) -> SweepTable:
    """Return a sweep whose point of a report's own run has the report's averages: processors round apart."""
    own = report.identity
    points = (
        point_of(point.number, point.values, point.title, own, report, point.choice) if point.run == own else point
        for point in table.points
    )
    return table.model_copy(update={"points": tuple(points)})


def learning(recipe: Recipe) -> dict[str, Recipe]:
    """Return the runs of AdaMerging that come beside an example, by name."""
    plain = {"calibrators": (), "seeds": (0,)}
    return {name: resolve(recipe.model_copy(update={**plain, **parts})) for name, parts in LEARNING.items()}
