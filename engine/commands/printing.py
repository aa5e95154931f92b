"""The one way of the commands to the terminal: text of zoos, files and people is shown there and never obeyed."""

from __future__ import annotations

import sys
import time

import typer

from ..outgoing import terminal, terminal_lines
from ..rounding import about
from ..types import Progress

SAYS_LITTLE = 3.0  # seconds after which the speed so far says how long it takes
KNOWN = 0.05  # share that has to be done for that


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
            spent = time.monotonic() - began
            known = spent >= SAYS_LITTLE and KNOWN <= fraction < 1
            left = f", {about(spent * (1 - fraction) / fraction)} left" if known else ""
            sys.stderr.write(f"\r\x1b[2K{100 * fraction:3.0f} %  {terminal(message)}{left}")
            if fraction >= 1:
                sys.stderr.write("\n")
            sys.stderr.flush()

    return show
