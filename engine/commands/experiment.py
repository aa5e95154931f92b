"""The command that repeats a paper's experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import EngineError
from ..experiments import Experiment, ExperimentResult, experiment_names, judge_again, read_experiment, read_result
from ..experiments.claims import EVIDENCE, SECOND, claims_table, clause_lists, effect, sets_of, shipped_path
from ..experiments.elsewhere import elsewhere_table
from ..experiments.sizes import shape_of
from ..lessons import networks_table
from ..manifest import locate_zoo, read_manifest
from ..outgoing import terminal
from ..pipeline.zoos.derived import derived_names
from ..store.outputs import check_file, new_file
from ..zoo.modalities import MODALITIES
from .inputs import files_of_zoo
from .printing import progress_line, say, say_line
from .work import Force, Quiet, Service, carrier

if TYPE_CHECKING:
    from ..store import Store

ALL = "all"


def experiment(
    name: Annotated[
        str | None,
        typer.Argument(help="An experiment's name or file, or 'all'; without one they are listed."),
    ] = None,
    zoo: Annotated[
        str, typer.Option(help="A bundled zoo's name or a path; without it the zoo that the experiment is meant for.")
    ] = "",
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="A zoo with another set of experts, by another seed; the sets are judged as one. Repeatable."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer images, shorter training, one seed.")] = False,
    foreseen: Annotated[bool, typer.Option("--foreseen", help="Only say how long it takes and what memory.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write the result to this JSON file; of 'all' into this folder.")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="Print all shipped results as a Markdown table.")] = False,
    ship: Annotated[bool, typer.Option("--ship", help="Write the result beside the experiments of the app.")] = False,
    judge: Annotated[
        Path | None,
        typer.Option(help="Judge this earlier result by the checks as they are now; nothing is measured."),
    ] = None,
    force: Force = False,
    service: Service = False,
    quiet: Quiet = False,
) -> None:
    """Repeat a claim of the papers on a zoo, with its controls, and judge it; 'all' goes on where it was stopped."""
    if judge is not None:
        _judged(name, judge, zoo, out, ship=ship, force=force, unused=bool(also) or quick or foreseen or service)
        return
    if table or name is None:
        parts = (networks_table, claims_table, elsewhere_table, clause_lists)
        unused = any((zoo, also, quick, foreseen, out, ship, service))
        say("\n\n".join(part() for part in parts)) if table else _listed(unused=unused)
        return
    from ..store import Store

    store, specs = Store(), _meant_for(zoo) if name == ALL else [read_experiment(name)]
    measured = _called(zoo)
    if ship:
        _check_shipped(specs, measured, quick=quick)
    if not quiet or foreseen:
        say("\n".join(line for place in (zoo, *(also or ())) for line in _foreseen(specs, place, store, quick=quick)))
    if foreseen:
        return

    def one(each: str, spec: Experiment, target: Path | None) -> None:
        inputs = [Path(name), *(file for place in (zoo or spec.zoo, *(also or ())) for file in files_of_zoo(place))]
        known = force or ship or (name == ALL and _is_result(target, spec))
        _one(
            each,
            spec,
            store,
            zoo=zoo,
            also=also or (),
            quick=quick,
            target=target,
            inputs=inputs,
            force=known,
            service=service,
            quiet=quiet,
        )

    if name != ALL:
        if out is not None:
            check_file(out, [Path(name), *files_of_zoo(zoo or specs[0].zoo)], force=force)
        one(name, specs[0], shipped_path(specs[0], measured) if ship else out)
        return

    def each_into(spec: Experiment) -> None:
        target = out / f"{spec.name}.json" if out else None
        one(spec.name, spec, shipped_path(spec, measured) if ship else target)

    _one_after_another(specs, each_into)


def _one_after_another(specs: list[Experiment], one: Callable[[Experiment], None]) -> None:
    """Carry experiments out, going on where one cannot be had."""
    lost = []
    for spec in specs:
        try:
            one(spec)
        except EngineError as error:
            lost.append(spec.name)
            say_line(f"{spec.name}: {error}")
    more = " Ask again to go on with the others." if lost else ""
    say_line(f"{len(specs) - len(lost)} of {len(specs)} experiments are done.{more}")


def _judged(name: str | None, file: Path, zoo: str, out: Path | None, *, ship: bool, force: bool, unused: bool) -> None:
    """Judge an earlier result of an experiment again, print it and write it down.

    Raises:
        EngineError: it is of another zoo or another experiment, or what the checks need is not in it.
    """
    if name is None or name == ALL:
        raise EngineError("Results are judged again one by one; name the experiment of this one, or its file.")
    if unused:
        raise EngineError("--judge measures nothing; leave out --also, --quick, --foreseen and --service.")
    spec, earlier = read_experiment(name), read_result(file)
    place = zoo or spec.zoo
    known = _called(place)
    if earlier.zoo not in (known, known + SECOND):
        raise EngineError(f"{file.name} was measured on the zoo {earlier.zoo}, and this is {known}. Name it by --zoo.")
    if ship:
        _check_shipped([spec], earlier.zoo, quick=earlier.quick)
    result = judge_again(spec, earlier, shape_of(place).sizes)
    target = shipped_path(spec, result.zoo) if ship else out
    say(printed(spec, result))
    if target is not None:
        _write(result, target, [Path(name)], force=force)


def _write(result: ExperimentResult, target: Path, inputs: list[Path], *, force: bool) -> None:
    """Write a result down."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_file(target, inputs, force=force) as file:
        file.write_text(result.model_dump_json(exclude_none=True) + "\n", "utf-8")


def _called(zoo: str) -> str:
    """Return the name that a zoo has in its manifest; of none nothing."""
    return read_manifest(locate_zoo(zoo)).name if zoo else ""


def _meant_for(zoo: str) -> list[Experiment]:
    """Return the experiments of the app; those that are meant for a zoo that has to be made first are said."""
    name, found = _called(zoo), [read_experiment(each) for each in experiment_names()]
    waiting = {made: [spec.name for spec in found if spec.zoo == made] for made in derived_names() if made != name}
    for made, names in waiting.items():
        if names:
            say_line(
                f"Left out: {', '.join(names)}. Their zoo has to be made first: `python -m engine zoo build {made} "
                "--out DIR`; then ask for each by its name with --zoo DIR."
            )
    return [spec for spec in found if spec.zoo not in waiting]


def _check_shipped(specs: list[Experiment], zoo: str, *, quick: bool) -> None:
    """Refuse to ship the quick form, or what a zoo gives that no result is shipped of.

    Raises:
        EngineError: with the reason.
    """
    if quick:
        raise EngineError("Only whole experiments are shipped; leave out --quick.")
    for spec in specs:
        if shipped_path(spec, zoo) is None:
            raise EngineError(f"'{spec.name}' is shipped as measured on the zoo {spec.zoo}, and this is {zoo}.")


def _is_result(target: Path | None, spec: Experiment) -> bool:
    """Return whether a file holds an earlier result of the same experiment, which a new one may replace."""
    try:
        return target is not None and ExperimentResult.model_validate_json(target.read_bytes()).name == spec.name
    except (OSError, ValueError):
        return False


def _listed(*, unused: bool) -> None:
    if unused:
        raise EngineError("Name an experiment, or 'all'; without a name they are listed, which takes no options.")
    for known in experiment_names():
        spec = read_experiment(known)
        say_line(f"{known}: {spec.title} ({spec.paper}, {spec.part}; about {spec.minutes:g} min)")


def _one(
    name: str,
    spec: Experiment,
    store: Store,
    *,
    zoo: str,
    also: Sequence[str],
    quick: bool,
    target: Path | None,
    inputs: list[Path],
    force: bool,
    service: bool,
    quiet: bool,
) -> None:
    """Carry one experiment out, print it and write it down."""
    from ..pipeline.local import run_experiment

    if target is not None and target.exists():
        check_file(target, inputs, force=force)
    told = None if quiet else progress_line()
    result = run_experiment(name, store, zoo=zoo, also=also, quick=quick, progress=told, carry=carrier(service))
    say(printed(spec, result))
    if target is not None:
        _write(result, target, inputs, force=force)


def _foreseen(specs: list[Experiment], zoo: str, store: Store, *, quick: bool) -> list[str]:
    """Return what the experiments take on each zoo that they are meant for, or on the one that is asked for."""
    groups: dict[str, list[Experiment]] = {}
    for spec in specs:
        groups.setdefault(zoo or spec.zoo, []).append(spec)
    return [_foreseen_on(place, group, store, quick=quick) for place, group in groups.items()]


def _foreseen_on(zoo: str, specs: list[Experiment], store: Store, *, quick: bool) -> str:
    """Return what experiments take on a zoo, in a sentence, and which of them it refuses wholly."""
    from ..pipeline.studies.foreseen import estimate_experiments

    found = estimate_experiments(specs, zoo, store, quick=quick)
    minutes = max(round(found.seconds / 60), 1)
    text = (
        f"Foreseen on {_called(zoo)}: {found.runs:,} runs, about {minutes:,} minute{'s' if minutes > 1 else ''}, "
        f"{found.peak_memory_bytes / 2**30:.1f} GiB of memory, {found.disk_bytes / 2**30:.1f} GiB in the store at most "
        f"({found.basis}). What the store has already is not computed again."
    )
    return text + (f" This zoo allows no part of {', '.join(found.refused)}." if found.refused else "")


def printed(spec: Experiment, result: ExperimentResult) -> str:
    """Return the result for the terminal: table, findings, verdict, provenance."""
    lines, many = [terminal(" ".join(spec.claim.split())), EVIDENCE, ""], MODALITIES[result.kind].many
    rows = [["", *(f"{m.title} ({m.unit})" if m.unit else m.title for m in spec.measures)]]
    for point in result.points:
        title = point.title + (" [control]" if point.control else "")
        rows.append([title, *(_cell(result, point.name, measure.name) for measure in spec.measures)])
    rows = [list(map(terminal, row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines += ["", *(terminal(f"{point.title}: {point.failed}") for point in result.points if point.failed)]
    by = {point.name: point.chosen_by for point in spec.points}
    for point in result.points:
        for tuned in point.tuned:
            tried = f"{', '.join(map(str, tuned.values))}, on {point.split} {many}, by {by[point.name]}"
            lines.append(terminal(f"{point.title}: {tuned.place} = {tuned.said}, chosen of {tried}"))
    for finding in result.findings:
        kind = "control" if finding.control else "claim"
        numbers = effect(finding)
        if numbers and finding.left is not None and finding.right is not None:
            numbers = f"{finding.left:.4g} against {finding.right:.4g}: {numbers}"
        numbers = f" ({numbers})" if numbers else ""
        lines.append(terminal(f"{kind}: {finding.text} {finding.verdict or finding.outcome}{numbers}"))
    lines += ["", terminal(f"{result.verdict}: {result.reason}"), terminal(provenance(result))]
    return "\n".join(lines)


def provenance(result: ExperimentResult) -> str:
    """Return a sentence on what the numbers were measured on."""
    low, high = result.images or (0, 0)
    count = f"{low:,}" if low == high else f"{low:,}-{high:,}"
    images = f"{count} evaluation {MODALITIES[result.kind].many}"
    seeds = max((len(point.seeds) for point in result.points), default=0)
    quick = " Quick form." if result.quick else ""
    return (
        f"Zoo {result.zoo}{sets_of(result)}, n = {images} a task, protocol {result.protocol.replace('_', ' ')} "
        f"unless a point says otherwise, split seed {result.split_seed}, "
        f"up to {seeds} training seed{'s' if seeds != 1 else ''}; "
        f"mean ± sd over seeds; differences with 95 % intervals.{quick}"
    )


def _cell(result: ExperimentResult, point: str, measure: str) -> str:
    cell = result.cell(point, measure)
    if cell is None:
        return "–"
    return f"{cell.mean:.4g}" + (f" ± {cell.sd:.2g}" if cell.sd is not None else "")
