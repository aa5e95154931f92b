"""The one way of the commands to the terminal: text of zoos, files and people is shown there and never obeyed."""

from __future__ import annotations

import sys
import time

import typer

from ..outgoing import terminal, terminal_lines
from ..rounding import about, seconds_left
from ..types import Progress


def say(text: object, *, err: bool = False) -> None:
    """Print text of one or more lines.

    Args:
        text: whatever it holds is shown.
        err: print it to the standard error.
    """
    typer.echo(terminal_lines(str(text)), err=err)


def say_line(text: object) -> None:
    """Print text in one line, whatever it holds."""
    typer.echo(terminal(str(text)))


def progress_line() -> Progress:
    """Return a single line on the terminal that is written over, with the time left as fast as it went so far."""
    shown, began = sys.stderr.isatty(), time.monotonic()

    def show(fraction: float, message: str = "") -> None:
        if shown:
            left = seconds_left(fraction, time.monotonic() - began)
            told = "" if left is None else f", {about(left)} left"
            sys.stderr.write(f"\r\x1b[2K{100 * fraction:3.0f} %  {terminal(message)}{told}")
            if fraction >= 1:
                sys.stderr.write("\n")
            sys.stderr.flush()

    return show
