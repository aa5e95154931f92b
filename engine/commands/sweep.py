"""The command that runs a recipe for several values of its parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..outgoing import terminal
from ..recipe import REFERENCE_STATES
from ..rounding import rounded
from ..store.outputs import check_file, new_file
from ..sweeps import SweepTable, parse_setting
from ..sweeps.grid import value_text
from ..zoo.modality import Modality
from ..zoo.nouns import called, kind_of_zoo
from .inputs import files_of_zoo
from .printing import progress_line, say
from .work import Force, Quiet, Service, carrier


def sweep(
    recipe: Annotated[Path, typer.Argument(help="A recipe file (YAML or JSON).")],
    setting: Annotated[
        list[str],
        typer.Option("--set", help="place=start:stop:step or place=a,b,c; give it twice for a grid."),
    ],
    out: Annotated[Path | None, typer.Option(help="Also write the table to this CSV file.")] = None,
    force: Force = False,
    service: Service = False,
    quiet: Quiet = False,
) -> None:
    """Run a recipe for every combination of values and print what each gives on the evaluation images.

    The best run of every state (*) is chosen on labelled validation images, else on labelled adaptation images, never
    on evaluation images; where there are neither, nothing is marked. What the runs share is computed once.
    """
    from ..pipeline.local import run_sweep
    from ..recipe import read_recipe
    from ..store import Store

    settings, document = [parse_setting(text) for text in setting], read_recipe(recipe)
    inputs = (recipe, *files_of_zoo(document.zoo))
    if out is not None:
        check_file(out, inputs, force=force)
    told = None if quiet else progress_line()
    table = run_sweep(document, settings, Store(), progress=told, carry=carrier(service))
    say(printed(table, kind_of_zoo(document.zoo)))
    if out is not None:
        with new_file(out, inputs, force=force) as file:
            file.write_text(table.to_csv(), "utf-8")


def printed(table: SweepTable, kind: Modality) -> str:
    """Return the table for the terminal: averages on evaluation samples, the best of every state marked."""
    states = [state for state in table.states() if state not in ("pretrained", "expert", *REFERENCE_STATES)]
    best = {state: point.number for state in states if (point := table.best(state))}
    heads = [*table.titles, *states, *(["merged out", "merged H"] if "merged" in states else [])]
    rows = [heads]
    for point in table.points:
        cells = [value_text(value) for value in point.values]
        if point.failed:
            rows.append([*cells, terminal(f"failed: {point.failed}")])
            continue
        for state in states:
            average = point.evaluation.get(state)
            mark = "*" if best.get(state) == point.number else " "
            cells.append(_text(average.within if average else None) + mark)
        merged = point.evaluation.get("merged")
        rows.append([*cells, *([_text(merged.out), _text(merged.h_score)] if merged else [])])
    whole = [row for row in rows if len(row) == len(heads)]
    widths = [max(len(row[column]) for row in whole) for column in range(len(heads))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, [*widths, 0], strict=False)) for row in rows]
    references = [
        (state, point.evaluation[state])
        for point in table.points
        for state in ("pretrained", "expert")
        if state in point.evaluation
    ][:2]
    lines += ["".join(f"{state}: {_text(average.within)}  " for state, average in references)] if references else []
    return "\n".join([*lines, called(table.provenance(), kind)])


def _text(value: float | None) -> str:
    return "–" if value is None else rounded(value)
