"""Commands that carry a recipe out in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..catalog.words import choice_title
from ..errors import EngineError
from ..outgoing import terminal_lines
from ..report import Report, schema_json
from ..rounding import rounded
from ..store.outputs import check_folder
from ..sweeps.table import span
from ..zoo.nouns import kind_of_zoo
from .printing import progress_line, say

if TYPE_CHECKING:
    from ..pipeline.local import Carrier

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")]
PROJECTIONS = ("tsne", "umap", "pca", "none")
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there already; inputs never are.")]

Service = Annotated[
    bool,
    typer.Option(
        "--service", help="Have the engine service carry it out on all its workers; it is started where none runs."
    ),
]


def carrier(service: bool) -> Carrier:
    """Return who carries a request out: the engine service, or this process."""
    from ..pipeline.local import in_this_process
    from ..service.carrying import by_service

    return by_service if service else in_this_process


def run(
    recipe: Annotated[Path, typer.Argument(help="A recipe file (YAML or JSON).")],
    out: Annotated[Path | None, typer.Option(help="Copy what the run leaves behind into this folder.")] = None,
    projection: Annotated[str, typer.Option(help="Also project the features: tsne, umap, pca or none.")] = "none",
    service: Service = False,
    quiet: Quiet = False,
) -> None:
    """Merge, encode, calibrate and measure as a recipe says; no service needed."""
    from ..pipeline.local import run_recipe
    from ..recipe import read_recipe
    from ..store import Store

    if projection not in PROJECTIONS:
        raise EngineError(f"--projection is '{projection:.80}'; give {', '.join(PROJECTIONS[:-1])} or none.")
    document = read_recipe(recipe)
    if out is not None:
        check_folder(out)
    view = None if projection == "none" else {"method": projection}
    told = None if quiet else progress_line()
    finished = run_recipe(document, Store(), view=view, out=out, progress=told, carry=carrier(service))
    say(summary(finished))
    for line in _published(finished):
        say(line)


def schema() -> None:
    """Print the JSON schema of a run's report."""
    say(schema_json().rstrip("\n"))


def examples(
    out: Annotated[Path | None, typer.Option(help="Where to put them (default: the app's assets).")] = None,
    only: Annotated[list[str] | None, typer.Option(help="An example to rebuild; the others stay as they are.")] = None,
    films: Annotated[bool, typer.Option("--films", help="Only the films of the examples that are there.")] = False,
    beside: Annotated[
        bool, typer.Option("--beside", help="Only the sweeps and learned coefficients beside examples that are there.")
    ] = False,
) -> None:
    """Rebuild the finished example runs that ship with the app."""
    from ..pipeline.export.examples import build_examples, rebuild_beside, rebuild_films
    from ..store import Store

    if out is not None and not (films or beside or only):
        check_folder(out)
    build = rebuild_films if films else rebuild_beside if beside else build_examples
    build(Store(), out, only=only or (), progress=progress_line())


def summary(report: Report) -> str:
    """Return a table of accuracies and biases for the terminal."""
    tasks = list(report.tasks)
    width = max(len(state) for state in [*report.states(), "L1 bias"]) + 2
    lines = ["".ljust(width) + "".join(task[:10].rjust(11) for task in tasks) + "in".rjust(8) + "out".rjust(8)]
    for state in report.states():
        row = report.accuracy[state]
        average = report.average[state]
        cells = [_cell(row.get(task)).rjust(11) for task in tasks]
        lines.append(state.ljust(width) + "".join(cells) + _cell(average.within).rjust(8) + _cell(average.out).rjust(8))
    merged = report.bias.get("merged")
    if merged:
        lines.append("L1 bias".ljust(width) + "".join(_cell(merged.l1.get(task), 3).rjust(11) for task in tasks))
    counts = {sample.evaluate for sample in report.samples.values()}
    many = kind_of_zoo(report.recipe.zoo).many
    lines.append(
        f"accuracy in percent on {span((min(counts, default=0), max(counts, default=0)))} evaluation {many} a task, "
        f"protocol {choice_title(report.protocol)}, "
        f"seed{'s' if len(report.seeds) > 1 else ''} {', '.join(map(str, report.seeds))}"
    )
    lines += [f"Warning: {warning}" for warning in report.warnings]
    return terminal_lines("\n".join(lines))


def _published(report: Report) -> list[str]:
    """Return accuracies that the zoo's authors published beside those of a run."""
    from ..errors import EngineError
    from ..manifest import locate_zoo, read_manifest
    from ..zoo.described.published import lines

    try:
        return lines(read_manifest(locate_zoo(report.recipe.zoo)), report)
    except EngineError:
        return []  # the zoo was moved since


def _cell(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else rounded(value, digits)
