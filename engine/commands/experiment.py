"""The command that repeats a paper's experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import EngineError
from ..experiments import Experiment, ExperimentResult, experiment_names, read_experiment
from ..experiments.claims import claims_table, effect
from ..experiments.spec import FOLDER
from ..outgoing import terminal
from ..store.outputs import check_file, new_file
from .printing import progress_line, say, say_line
from .work import Force, Quiet

OUTCOMES = {"yes": "yes", "no": "NO", "unclear": "no clear difference", "missing": "not measured"}


def experiment(
    name: Annotated[
        str | None, typer.Argument(help="An experiment's name or file; without one they are listed.")
    ] = None,
    zoo: Annotated[str, typer.Option(help="A bundled zoo's name or a path.")] = "mini8",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer images, shorter training, one seed.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the result to this JSON file.")] = None,
    table: Annotated[bool, typer.Option("--table", help="Print all shipped results as a Markdown table.")] = False,
    ship: Annotated[bool, typer.Option("--ship", help="Write the result beside the experiments of the app.")] = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Repeat a claim of the papers on a zoo, with its controls, and judge it."""
    if table:
        say(claims_table())
        return
    if name is None:
        for known in experiment_names():
            spec = read_experiment(known)
            say_line(f"{known}: {spec.title} ({spec.paper}, {spec.part}; about {spec.minutes:g} min)")
        return
    from ..pipeline.local import run_experiment
    from ..store import Store

    if out is not None:
        check_file(out, force=force)
    spec = read_experiment(name)
    if ship and (quick or zoo != "mini8"):
        raise EngineError("Only whole experiments on the bundled zoo are shipped; leave out --quick and --zoo.")
    result = run_experiment(name, Store(), zoo=zoo, quick=quick, progress=None if quiet else progress_line())
    say(printed(spec, result))
    target = FOLDER / f"{spec.name}.json" if ship else out
    if target is not None:
        with new_file(target, force=force or ship) as file:
            file.write_text(result.model_dump_json(indent=1) + "\n", "utf-8")


def printed(spec: Experiment, result: ExperimentResult) -> str:
    """Return the result for the terminal: table, findings, verdict, provenance."""
    lines = [spec.claim, ""]
    rows = [["", *(f"{m.title} ({m.unit})" if m.unit else m.title for m in spec.measures)]]
    for point in result.points:
        title = point.title + (" [control]" if point.control else "")
        rows.append([title, *(_cell(result, point.name, measure.name) for measure in spec.measures)])
    rows = [list(map(terminal, row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines += ["", *(terminal(f"{point.title}: {point.failed}") for point in result.points if point.failed)]
    for finding in result.findings:
        kind = "control" if finding.control else "claim"
        numbers = "" if finding.difference is None else f" ({finding.left:.4g} against {finding.right:.4g}: "
        numbers += f"{effect(finding)})" if numbers else ""
        said = OUTCOMES.get(finding.outcome, finding.outcome)
        lines.append(terminal(f"{kind}: {finding.text} {finding.verdict or said}{numbers}"))
    lines += ["", f"{result.verdict}: {result.reason}", provenance(result)]
    return "\n".join(lines)


def provenance(result: ExperimentResult) -> str:
    """Return a sentence on what the numbers were measured on."""
    low, high = result.images or (0, 0)
    images = f"{low:,}" if low == high else f"{low:,}-{high:,}"
    seeds = max((len(point.seeds) for point in result.points), default=0)
    quick = " Quick form." if result.quick else ""
    return (
        f"Zoo {result.zoo}, n = {images} evaluation images a task, protocol {result.protocol.replace('_', ' ')}, "
        f"split seed {result.split_seed}, up to {seeds} training seed{'s' if seeds != 1 else ''}; "
        f"mean ± sd over seeds.{quick}"
    )


def _cell(result: ExperimentResult, point: str, measure: str) -> str:
    cell = result.cell(point, measure)
    if cell is None:
        return "–"
    return f"{cell.mean:.4g}" + (f" ± {cell.sd:.2g}" if cell.sd is not None else "")
