"""The command line: ``python -m engine`` (or ``mergelens`` once installed)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import typer
from typer.main import get_command

from .commands import (
    convert,
    doctor,
    experiment,
    film,
    lesson,
    merge,
    preflight,
    receipt,
    runs,
    selfcheck,
    service,
    sweep,
    table,
    verify,
    views,
    work,
    zoo,
)
from .ending import carry_out
from .errors import EngineError
from .outgoing import terminal_lines

STOPPED = 130  # exit code of what somebody interrupts

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Merge fine-tuned experts of images or texts, see what merging does to their representations, and repair it.",
)
app.command("run")(work.run)
app.command("merge")(merge.merge)
app.command("preflight")(preflight.preflight)
app.command("sweep")(sweep.sweep)
app.command("film")(film.film)
app.command("experiment")(experiment.experiment)
app.command("selfcheck")(selfcheck.selfcheck)
app.command("serve")(service.serve)
app.command("examples")(work.examples)
app.command("schema")(work.schema)
app.command("doctor")(doctor.doctor)
app.command("export")(runs.export)
app.command("views")(views.views)
app.command("receipt")(receipt.receipt)
app.command("verify")(verify.verify)
app.command("convert")(convert.convert)
app.add_typer(lesson.app, name="lesson")
app.add_typer(zoo.app, name="zoo")
app.add_typer(table.app, name="runs")


@cache
def _command() -> Callable[..., Any]:
    """Put all commands together, once for a process that carries several out."""
    return get_command(app)


def main() -> None:
    """Run a command; an error that is meant for people is printed as one line, never as a traceback."""
    try:
        _command()(standalone_mode=True)
    except EngineError as error:
        sys.stderr.write(f"Error: {terminal_lines(str(error))}\n")
        raise SystemExit(1) from None
    except Exception as error:
        if os.environ.get("MERGELENS_DEBUG"):
            raise
        sys.stderr.write(
            f"Unexpected {type(error).__name__}: {terminal_lines(str(error))}\nSet MERGELENS_DEBUG=1 to see where.\n"
        )
        raise SystemExit(70) from None
    except SystemExit as end:
        if end.code == STOPPED:
            sys.stderr.write("Stopped.\n")
        raise
    except KeyboardInterrupt:  # before typer is at work, which ends otherwise
        sys.stderr.write("Stopped.\n")
        raise SystemExit(STOPPED) from None


def command() -> None:
    """Run a command as a process of its own."""
    carry_out(main)


if __name__ == "__main__":
    command()
