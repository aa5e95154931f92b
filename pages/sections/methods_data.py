"""Results of merge methods from the reports of finished runs, and the recipes that fill the gaps."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from engine.catalog import fits, resolve
from engine.errors import EngineError
from engine.figures.methods import Method, Result, Row, shipped_results
from engine.recipe import MethodCall, Recipe, parse_recipe
from pages.shared import state
from pages.shared.state import examples, result_folder, store

LOOKED_BACK = 1000  # finished runs that are searched for results


def results_on(zoo: str, experts: tuple[str, ...]) -> list[Result]:
    """Return results of runs that merged all of a zoo's experts, unweighted, newest first.

    Examples come behind them, and last what comes with the app.
    """
    found = []
    for row in store().runs.list(kinds=("run",), states=("finished",), limit=LOOKED_BACK):
        if (row.request.get("recipe") or {}).get("zoo") == zoo and (folder := result_folder(row.result)):
            found.append(_result(str(folder), row.id, row.name, zoo, experts))
    found += [_result(str(state.EXAMPLES / entry.id), entry.id, entry.title, zoo, experts) for entry in examples()]
    return [result for result in found if result is not None] + shipped_results(zoo, experts)


def recipe_for(method: Method, row: Row, zoo: str) -> Recipe:
    """Return a recipe that runs a method with its default parameters and nothing else."""
    *transforms, merge = method
    calls = tuple(MethodCall(method=name) for name in transforms)
    return resolve(Recipe(zoo=zoo, transforms=calls, merge=MethodCall(method=merge)))


def missing(results: Mapping[Method, Result], table: Mapping[Method, Row], experts: int) -> list[Method]:
    """Return methods without a run here that need nothing but the weights and take this many experts."""
    ran = {name for name, result in results.items() if result.run}
    return [name for name, row in table.items() if name not in ran and not row.needs and fits(row, experts)]


def _states(report: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return averages of the states, calibrators of the merged model under their method's name."""
    calibrators = report.get("calibrators", {})
    found = {name: values for name, values in report["average"].items() if name not in calibrators}
    of = {part["method"]: report["average"].get(name) for name, part in calibrators.items() if part["on"] == "merged"}
    return found | {method: values for method, values in of.items() if values}


@st.cache_data(max_entries=2000, ttl="1h", show_spinner=False)
def _result(folder: str, run: str, title: str, zoo: str, experts: tuple[str, ...]) -> Result | None:
    """Return a report's averages, without checking the rest of it; None of other experts or another zoo."""
    try:
        report: dict[str, Any] = json.loads((Path(folder) / "report.json").read_bytes())
        recipe = resolve(parse_recipe(report["recipe"]))
        weighted = recipe.experts != "all" and any(expert.weight != 1 for expert in recipe.experts)
        if recipe.zoo != zoo or weighted or tuple(report["experts"]) != experts:
            return None
        calls = [*recipe.transforms, recipe.merge]
        merged = report["average"].get("merged", {})
        return Result(
            run,
            title,
            tuple(call.method for call in calls),
            {call.method: call.params for call in calls},
            len(report["experts"]),
            merged.get("in"),
            merged.get("out"),
            merged.get("h_score"),
            report.get("timing_s", {}).get("merge"),
            _states(report),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EngineError):
        return None
