"""The table of methods: what each is and needs, and what finished runs on one zoo measured with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..catalog import MERGE_METHODS, TRANSFORMS, MergeRow, TransformRow, params_of
from ..catalog.words import CATEGORIES, learns, makes, needs_of
from ..errors import EngineError
from ..manifest import ASSETS, bundled_zoos
from ..zoo.kinds import known_kinds

SHIPPED = ASSETS / "methods"  # results that come with the app, by bundled zoo; `benchmarks/methods.py --ship`
WITH_APP = "comes with the app"
BEHIND = "task_arithmetic"  # the merge that transforms are measured with
Row = MergeRow | TransformRow
Method = tuple[str, ...]  # transforms in order, then the merge method


@dataclass(frozen=True)
class Result:
    """Measurements of one finished run's merge."""

    run: str  # empty: they come with the app
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


def shipped_results(zoo: str, experts: tuple[str, ...]) -> list[Result]:
    """Return the results that come with the app for a bundled zoo, of all its experts; none of other experts."""
    document = _shipped(zoo)
    if not document or tuple(document["experts"]) != experts:
        return []
    title = f"{WITH_APP}, seed {document['seed']}"
    return [
        Result(**{**entry, "method": tuple(entry["method"]), "title": title, "run": ""})
        for entry in document["results"]
    ]


def shipped_said(zoo: str, many: str) -> str:
    """Return what the app's own results were measured on, ``many`` being images or texts; '' where it has none."""
    document = _shipped(zoo)
    if not document:
        return ""
    return (
        f"Numbers without a run here come with the app: n = {document['n']['in']:,} evaluation {many} in domain and "
        f"{document['n']['out']:,} out of it, {document['protocol'].replace('_', ' ')}, split seed "
        f"{document['split_seed']}, seed {document['seed']}."
    )


def _shipped(zoo: str) -> dict[str, Any]:
    file = SHIPPED / f"{zoo}.json"
    return json.loads(file.read_bytes()) if zoo in bundled_zoos() and file.is_file() else {}


def default_params(name: str) -> dict[str, Any]:
    """Return a method's parameters with nothing set."""
    row = MERGE_METHODS.get(name) or TRANSFORMS[name]
    return params_of(row, {}).model_dump(mode="json")


def best_results(results: Iterable[Result]) -> dict[Method, Result]:
    """Return one result a method: of runs with default parameters the first, else the first run, else the app's."""
    found: dict[Method, Result] = {}
    for result in results:
        before = found.get(result.method)
        if before is None or (result.run and result.default and not before.default):
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
                "kinds": known_kinds(),
                "learns": learns(row),
                "yields": makes(row),
                "in": result.within if result else None,
                "out": result.out if result else None,
                "h_score": result.h_score if result else None,
                "seconds": result.seconds if result else None,
                "parameters": ("default" if result.default else "changed") if result else "",
                "run": (result.run or WITH_APP) if result else "",
                "source": row.url,
                "method": "+".join(method),
            }
        )
    return pd.DataFrame(rows)
