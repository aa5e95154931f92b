"""The command that runs a recipe for several values of its parameters."""

from __future__ import annotations

import csv
import itertools
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from ..errors import EngineError, RecipeError, nearest
from ..report import Report

MAX_RUNS = 200


def sweep(
    recipe: Annotated[Path, typer.Argument(help="A recipe file (YAML or JSON).")],
    setting: Annotated[
        list[str], typer.Option("--set", help="place=start:stop:step or place=a,b,c; give it again for a grid.")
    ],
    out: Annotated[Path | None, typer.Option(help="Also write the table to this CSV file.")] = None,
) -> None:
    """Run a recipe for every combination of values and print what each gives on the evaluation images.

    Nothing is chosen: picking the best row would choose on evaluation images. What the runs share is computed once.
    """
    from ..pipeline.local import run_recipe
    from ..recipe import parse_recipe, read_recipe
    from ..store import Store

    if out is not None and out.exists():
        raise EngineError(f"{out} exists already; give a new name.")
    document = read_recipe(recipe).model_dump(mode="json")
    places, grids = zip(*(parse_setting(text) for text in setting), strict=True)
    combinations = list(itertools.product(*grids))
    if len(combinations) > MAX_RUNS:
        raise RecipeError(f"The sweep has {len(combinations)} combinations; at most {MAX_RUNS} are run.")
    recipes = []
    for values in combinations:
        changed = yaml.safe_load(yaml.safe_dump(document))
        for place, value in zip(places, values, strict=True):
            set_place(changed, place, value)
        recipes.append(parse_recipe(changed))
    store, rows = Store(), []
    for values, changed_recipe in zip(combinations, recipes, strict=True):
        rows.append(_row(places, values, run_recipe(changed_recipe, store)))
        typer.echo("  ".join(f"{name}={_text(value)}" for name, value in rows[-1].items()))
    if out is not None:
        with out.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, fieldnames=list(rows[0]))
            table.writeheader()
            table.writerows(rows)


def parse_setting(text: str) -> tuple[str, list[Any]]:
    """Read ``merge.params.scaling=0.1:0.5:0.1`` or ``merge.method=ties,tsv_m``.

    Raises:
        RecipeError: no value, or a range that does not end.
    """
    place, separator, values = text.partition("=")
    if not separator or not values:
        raise RecipeError(f"'{text}' sets nothing; write it as place=start:stop:step or place=a,b,c.")
    if values.count(":") != 2:
        return place, [yaml.safe_load(part) for part in values.split(",")]
    try:
        start, stop, step = (Decimal(part) for part in values.split(":"))
    except InvalidOperation as error:
        raise RecipeError(f"'{values}' is no range of numbers; write it as start:stop:step.") from error
    if not (step > 0 and stop >= start) or (stop - start) / step > MAX_RUNS:
        raise RecipeError(f"The range {values} does not lead from its start to its stop in at most {MAX_RUNS} steps.")
    count = int((stop - start) / step) + 1
    numbers = [start + index * step for index in range(count)]
    whole = all(number == number.to_integral_value() for number in (start, stop, step))
    return place, [int(number) if whole else float(number) for number in numbers]


def set_place(document: dict[str, Any], place: str, value: Any) -> None:
    """Set one value of a recipe document; parts of calibrators and transforms are named by their number.

    Raises:
        RecipeError: there is no such place, with the nearest one.
    """
    *path, last = place.split(".")
    target: Any = document
    for part in path:
        target = _inside(target, part, place)
    if isinstance(target, list):
        raise RecipeError(f"'{place}' names an entry of a list; name one of its keys.")
    if last not in target and not (path and path[-1] == "params"):
        raise RecipeError(f"The recipe has no '{place}'. {nearest(last, target)}")
    target[last] = value


def _inside(target: Any, part: str, place: str) -> Any:
    if isinstance(target, list):
        if part.isdigit() and int(part) < len(target):
            return target[int(part)]
        raise RecipeError(f"'{place}': there are {len(target)} entries, numbered from 0; found '{part}'.")
    if not isinstance(target, dict) or part not in target:
        raise RecipeError(f"The recipe has no '{place}'. {nearest(part, target if isinstance(target, dict) else ())}")
    return target[part]


def _row(places: tuple[str, ...], values: tuple[Any, ...], report: Report) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(places, values, strict=True))
    for state in ("merged", *report.calibrators):
        if state in report.average:
            row[f"{state}.in"] = report.average[state].within
    if "merged" in report.average:
        row |= {"merged.out": report.average["merged"].out, "merged.h_score": report.average["merged"].h_score}
    return row


def _text(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
