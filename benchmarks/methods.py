"""Measure every merge method on the bundled zoo: accuracy in and out of domain, H-score, seconds.

Run: python benchmarks/methods.py [--only NAME ...] [--seed N] [--store DIR]. Prints a Markdown table. Methods take the
defaults of the catalog; nothing is tuned on the images that are scored. Trained methods get the budget of STEPS, which
the table states. ``seconds`` are of the merge alone, on the clock.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from engine.catalog import MERGE_METHODS, TRANSFORMS, params_of
from engine.errors import EngineError
from engine.pipeline.local import run_recipe
from engine.recipe import parse_recipe
from engine.report import Report
from engine.rounding import rounded
from engine.store import Store

# Budgets of methods whose defaults are made for accelerators.
STEPS: dict[str, dict[str, Any]] = {
    "adamerging": {"steps": 200},
    "concrete": {"steps": 200},
    "doge_am": {"steps": 100},
    "evolutionary": {"evaluations": 60},
    "wemoe": {"steps": 200},
}
BUDGET = ("steps", "evaluations", "epochs", "examples", "coefficient_steps", "correction_steps")
# Variants that people compare; all other methods are run once, with their defaults.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "ties": {"TIES, sum": {}, "TIES, mean (paper)": {"merge": "mean", "scaling": 1.0}},
    "adamerging": {
        "AdaMerging, task-wise": {"granularity": "task"},
        "AdaMerging, layer-wise": {"granularity": "layer"},
        "AdaMerging++, layer-wise": {"granularity": "layer", "plus_plus": True},
    },
}
TWO = ["digits", "signs"]
BASELINES = {
    "pretrained": "Pretrained (no expert)",
    "multitask": "Trained on all tasks",
    "expert": "Each task's expert",
}


def works(only: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Label and recipe of every row: merge methods, then transforms in front of task arithmetic."""
    for row in MERGE_METHODS.values():
        for label, params in VARIANTS.get(row.name, {row.title: {}}).items():
            call = {"method": row.name, "params": {**STEPS.get(row.name, {}), **params}}
            recipe: dict[str, Any] = {"merge": call}
            if row.max_experts == len(TWO):
                label, recipe["experts"] = f"{label}, two experts", TWO
            if not only or row.name in only:
                yield label, recipe
    for row in TRANSFORMS.values():
        if not only or row.name in only:
            yield f"{row.title} + Task Arithmetic", {"transforms": [{"method": row.name}]}


def budget(recipe: dict[str, Any]) -> str:
    """Return what bounds the work of a trained method, in words."""
    call = recipe.get("merge")
    if not call or not (row := MERGE_METHODS[call["method"]]).needs:
        return "–"
    values = params_of(row, call["params"]).model_dump()
    if row.name == "concrete" and values["coefficients"] == "fixed":
        values.pop("coefficient_steps")
    return ", ".join(f"{values[name]} {name.replace('_', ' ')}" for name in BUDGET if name in values)


def cells(report: Report, state: str) -> str:
    """In, out and H-score of a state."""
    average = report.average[state]
    return " | ".join(
        "–" if value is None else rounded(value) for value in (average.within, average.out, average.h_score)
    )


def family(recipe: dict[str, Any]) -> str:
    """Return the category of the method or transform."""
    row = (
        MERGE_METHODS[recipe["merge"]["method"]] if "merge" in recipe else TRANSFORMS[recipe["transforms"][0]["method"]]
    )
    return row.category.replace("_", " ")


def head(report: Report, seed: int) -> str:
    """Return the head of the table: what was scored, on what, and the baselines."""
    scored = {
        domain: sum(report.samples[task].evaluate for task in report.tasks_of(domain)) for domain in ("in", "out")
    }
    lines = [
        f"{report.zoo.title} ({report.zoo.name}): n = {scored['in']} evaluation images of "
        f"{len(report.tasks_of('in'))} in-domain tasks and {scored['out']} of {len(report.tasks_of('out'))} "
        f"out-of-domain tasks; split {report.protocol}, split seed {report.split_seed}, seed {seed}; "
        f"{platform.machine()}, torch {torch.__version__}, CPU.",
        "",
        "| method | family | in | out | H-score | seconds | budget |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {label} | baseline | {cells(report, state)} | – | – |"
        for state, label in BASELINES.items()
        if state in report.average
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="names of methods and transforms")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", help="keep artefacts here, so that a second call goes on where the first ended")
    asked = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="mergelens-") as folder:
        store = Store(asked.store or folder)
        plain = run_recipe(parse_recipe({"seeds": [asked.seed]}), store)
        print(head(plain, asked.seed), flush=True)
        for label, recipe in works(asked.only):
            try:
                report = run_recipe(parse_recipe({**recipe, "seeds": [asked.seed]}), store)
            except EngineError as error:
                failed += 1
                print(f"| {label} | {family(recipe)} | failed: {error} | | | | |", flush=True)
                continue
            took = f"{report.timing_s['merge']:.1f}"
            print(f"| {label} | {family(recipe)} | {cells(report, 'merged')} | {took} | {budget(recipe)} |", flush=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
