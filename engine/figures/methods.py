"""The table of methods: what each is and needs, and what finished runs on one zoo measured with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..catalog import MERGE_METHODS, TRANSFORMS, MergeRow, TransformRow, params_of
from ..catalog.words import CATEGORIES, kinds_of, learns, makes, needs_of
from ..errors import EngineError

BEHIND = "task_arithmetic"  # the merge that transforms are measured with
Row = MergeRow | TransformRow
Method = tuple[str, ...]  # transforms in order, then the merge method


@dataclass(frozen=True)
class Result:
    """Measurements of one finished run's merge."""

    run: str
    title: str
    method: Method
    params: Mapping[str, Any]  # of the merge and its transforms, by method
    experts: int
    within: float | None
    out: float | None
    h_score: float | None
    seconds: float | None
    states: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)  # averages; calibrators by method

    @property
    def default(self) -> bool:
        """Return whether every parameter has its default."""
        try:
            return all(dict(self.params[name]) == default_params(name) for name in self.method)
        except EngineError:
            return False


def methods() -> dict[Method, Row]:
    """Return every row of the table: merge methods alone, and transforms in front of task arithmetic."""
    ranks = list(CATEGORIES)
    rows: list[tuple[Method, Row]] = [((row.name,), row) for row in MERGE_METHODS.values()]
    rows += [((row.name, BEHIND), row) for row in TRANSFORMS.values()]
    return dict(sorted(rows, key=lambda item: ranks.index(item[1].category)))


def default_params(name: str) -> dict[str, Any]:
    """Return a method's parameters with nothing set."""
    row = MERGE_METHODS.get(name) or TRANSFORMS[name]
    return params_of(row, {}).model_dump(mode="json")


def best_results(results: Iterable[Result]) -> dict[Method, Result]:
    """Return one result a method: of those with default parameters the first, else the first."""
    found: dict[Method, Result] = {}
    for result in results:
        before = found.get(result.method)
        if before is None or (result.default and not before.default):
            found[result.method] = result
    return found


def method_table(results: Mapping[Method, Result]) -> pd.DataFrame:
    """Return one row a method, with the results of the runs given.

    Args:
        results: by method, on one zoo and set of experts.
    """
    rows = []
    for method, row in methods().items():
        result = results.get(method)
        rows.append(
            {
                "category": CATEGORIES[row.category],
                "title": row.title,
                "needs": needs_of(row),
                "kinds": kinds_of(row),
                "learns": learns(row),
                "yields": makes(row),
                "in": result.within if result else None,
                "out": result.out if result else None,
                "h_score": result.h_score if result else None,
                "seconds": result.seconds if result else None,
                "parameters": ("default" if result.default else "changed") if result else "",
                "run": result.run if result else "",
                "source": row.url,
                "method": "+".join(method),
            }
        )
    return pd.DataFrame(rows)
