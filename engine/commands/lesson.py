"""Commands for those who write lessons: list them, look up what they may quote, check one, measure networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import RecipeError
from ..lessons import (
    check_lesson,
    lesson_names,
    own_folder,
    own_lessons,
    read_lesson,
    shipped_result,
    shown,
    source_names,
    source_of,
)
from ..lessons.check import changes
from ..rounding import rounded
from ..store.outputs import check_file, new_file
from .printing import say, say_line
from .work import Force, Quiet

app = typer.Typer(no_args_is_help=True, help="Write lessons for the page Learn.")


@app.command("list")
def listed(
    path: Annotated[
        Path | None, typer.Option(help="Folder of your own lessons; default: lessons in the store.")
    ] = None,
) -> None:
    """List the lessons that come with the app, and your own."""
    for name in lesson_names():
        say_line(f"{name}: {read_lesson(name).title}")
    folder = path or _own()
    files = own_lessons(folder)
    say_line(f"Your own, in {folder}:" if files else f"None of your own in {folder}.")
    for file in files:
        lesson, problems = check_lesson(file)
        faults = sum(problem.fault for problem in problems)
        state = f" ({faults} fault{'s' if faults != 1 else ''}: engine lesson check {file})" if faults else ""
        say_line(f"{file.stem}: {lesson.title if lesson else 'cannot be read'}{state}")


@app.command("numbers")
def numbers(
    experiment: Annotated[str | None, typer.Argument(help="Its name; without one all are listed.")] = None,
) -> None:
    """List the numbers that a lesson may quote, by place, with what was measured."""
    if experiment is None:
        for name in source_names():
            say_line(f"{name}: {source_of(name).title}")
        return
    spec, result = source_of(experiment), shipped_result(experiment)
    for point in spec.points:
        for measure in spec.measures:
            cell = result.cell(point.name, measure.name) if result else None
            value = "not measured yet" if cell is None else f"{rounded(cell.mean, 3)} {measure.unit}".strip()
            say_line(f"{{{experiment}.{point.name}.{measure.name}}}  {value}  ({measure.title}; {point.title})")


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="A lesson's YAML file.")],
    watch: Annotated[
        bool, typer.Option("--watch", help="Check again whenever the file is written; ends by Ctrl+C.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Check a lesson's file line by line and print it as its reader will see it, with the measured answers."""
    if not file.is_file():
        raise RecipeError(f"There is no file {file}. Give the YAML file of a lesson.")
    if not watch:
        if not _checked(file, quiet=quiet):
            raise typer.Exit(1)
        return
    for _ in changes(file):
        _checked(file, quiet=quiet)
        say_line(f"Watching {file}. Ctrl+C ends.")


@app.command("measure")
def measure(
    name: Annotated[str, typer.Argument(help="Numbers of networks that belong to no zoo, such as re-basin.")],
    out: Annotated[Path | None, typer.Option(help="Write them to this JSON file; default: beside the lessons.")] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Train and compare the small networks of a lesson, in a minute, and write their numbers down."""
    from ..errors import nearest
    from ..lessons.measured import NETWORKS
    from ..pipeline.studies.networks import STUDIES
    from .printing import progress_line

    if name not in STUDIES:
        raise RecipeError(f"There are no networks '{name}'. {nearest(name, STUDIES)}")
    target = out or NETWORKS / f"{name}.json"
    check_file(target, force=force)
    found = STUDIES[name](None if quiet else progress_line())
    with new_file(target, force=force) as file:
        file.write_text(found.model_dump_json(exclude_none=True) + "\n", "utf-8")
    from .experiment import printed

    say(printed(found.experiment, found.result))


def _checked(file: Path, *, quiet: bool) -> bool:
    """Print what a check finds, and the lesson where it can be read; returns whether there is no fault."""
    lesson, problems = check_lesson(file)
    for problem in problems:
        say_line(problem)
    faults = sum(problem.fault for problem in problems)
    if lesson is not None and not faults and not quiet:
        say(f"\n{shown(lesson)}\n")
    say_line(f"{faults} fault{'s' if faults != 1 else ''} in {file.name}." if faults else f"{file.name} is in order.")
    return not faults


def _own() -> Path:
    from ..store import Store

    return own_folder(Store().root)
