"""Measure every merge method on a zoo: accuracy in and out of domain, H-score, seconds.

Run: python benchmarks/methods.py [--zoo ZOO] [--only NAME ...] [--seed N] [--store DIR] [--ship]. Prints a Markdown
table, of mini8 unless another zoo is named, by its bundled name or folder. Methods take the defaults of the catalog;
nothing is tuned on what is scored. Trained methods get the budget of STEPS, which the table states. ``seconds`` are of
the merge alone, on the clock. ``--ship`` writes the numbers where the page Methods finds them until a run of its own
has some, into assets/methods; with ``--only`` the other methods' numbers stay.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from engine.catalog import MERGE_METHODS, TRANSFORMS, params_of
from engine.errors import EngineError
from engine.figures.methods import SHIPPED, Result
from engine.pipeline.local import run_recipe
from engine.recipe import parse_recipe
from engine.report import Report
from engine.rounding import rounded
from engine.store import Store
from engine.zoo.folder import Zoo
from engine.zoo.modalities import modality_of

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
TWO = ["digits", "signs"]  # for methods that merge no more; another zoo's first two
BASELINES = {
    "pretrained": "Pretrained (no expert)",
    "multitask": "Trained on all tasks",
    "expert": "Each task's expert",
}


def works(only: list[str], experts: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Label and recipe of every row: merge methods, then transforms in front of task arithmetic."""
    two = TWO if set(TWO) <= set(experts) else experts[:2]
    for row in MERGE_METHODS.values():
        for label, params in VARIANTS.get(row.name, {row.title: {}}).items():
            call = {"method": row.name, "params": {**STEPS.get(row.name, {}), **params}}
            recipe: dict[str, Any] = {"merge": call}
            if row.max_experts == len(TWO):
                label, recipe["experts"] = f"{label}, two experts", two
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


def head(report: Report, seed: int, many: str) -> str:
    """Return the head of the table: what was scored (``many``: images or texts), on what, and the baselines."""
    scored = {
        domain: sum(report.samples[task].evaluate for task in report.tasks_of(domain)) for domain in ("in", "out")
    }
    lines = [
        f"{report.zoo.title} ({report.zoo.name}): n = {scored['in']} evaluation {many} of "
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


def result_of(report: Report) -> Result:
    """Return what the page Methods shows of a run."""
    calls, average = [*report.recipe.transforms, report.recipe.merge], report.average
    values = {name: {"in": one.within, "out": one.out, "h_score": one.h_score} for name, one in average.items()}
    return Result(
        run="",
        title="",
        method=tuple(call.method for call in calls),
        params={call.method: dict(call.params) for call in calls},
        experts=len(report.experts),
        within=average["merged"].within,
        out=average["merged"].out,
        h_score=average["merged"].h_score,
        seconds=None,  # of a machine that the reader does not have
        states=values,
    )


def ship(zoo: str, plain: Report, seed: int, found: list[Result]) -> None:
    """Write results beside those that are there; with default parameters before others, and the last of equals."""
    file = SHIPPED / f"{zoo}.json"
    known = json.loads(file.read_text())["results"] if file.is_file() else []
    merged = {tuple(entry["method"]): entry for entry in known}
    for result in found:
        if result.default or result.method not in {other.method for other in found if other.default}:
            merged[result.method] = asdict(result)
    scored = {domain: sum(plain.samples[task].evaluate for task in plain.tasks_of(domain)) for domain in ("in", "out")}
    document = {
        "zoo": zoo,
        "experts": list(plain.experts),
        "protocol": plain.protocol,
        "split_seed": plain.split_seed,
        "seed": seed,
        "n": scored,
        "results": [merged[method] for method in sorted(merged)],
    }
    SHIPPED.mkdir(exist_ok=True)
    short = partial(json.dumps, separators=(",", ":"))
    rows = ",\n".join(map(short, document.pop("results")))
    file.write_text(f'{short(document)[:-1]},"results":[\n{rows}\n]}}\n')


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zoo", default="mini8", help="a bundled zoo's name or a folder")
    parser.add_argument("--only", nargs="*", default=[], help="names of methods and transforms")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", help="keep artefacts here, so that a second call goes on where the first ended")
    parser.add_argument("--ship", action="store_true", help="write the numbers for the page Methods")
    asked = parser.parse_args()
    failed, found = 0, []
    with tempfile.TemporaryDirectory(prefix="mergelens-") as folder:
        store, manifest = Store(asked.store or folder), Zoo.open(asked.zoo).manifest
        common = {"zoo": asked.zoo, "seeds": [asked.seed]}
        plain = run_recipe(parse_recipe(common), store)
        print(head(plain, asked.seed, modality_of(manifest).many), flush=True)
        for label, recipe in works(asked.only, [expert.name for expert in manifest.experts]):
            try:
                report = run_recipe(parse_recipe({**common, **recipe}), store)
            except EngineError as error:
                failed += 1
                print(f"| {label} | {family(recipe)} | failed: {error} | | | | |", flush=True)
                continue
            if report.experts == plain.experts:
                found.append(result_of(report))
            took = f"{report.timing_s['merge']:.1f}"
            print(f"| {label} | {family(recipe)} | {cells(report, 'merged')} | {took} | {budget(recipe)} |", flush=True)
    if asked.ship:
        ship(asked.zoo, plain, asked.seed, found)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
