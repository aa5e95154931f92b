"""The command that checks a recipe before anything long starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .printing import progress_line, say, say_line

MARKS = {"error": "ERROR  ", "warning": "Warning", "note": "ok     "}


def preflight(
    recipe: Annotated[Path, typer.Argument(help="A recipe file (YAML or JSON).")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check files, values, heads, data, disk and memory at once, and estimate what a run takes."""
    from ..pipeline.local import preflight_recipe
    from ..recipe import read_recipe
    from ..store import Store

    found = preflight_recipe(read_recipe(recipe), Store(), None if as_json else progress_line())
    if as_json:
        say(json.dumps(found.model_dump(mode="json"), indent=1))
    else:
        for finding in found.findings:
            say_line(f"{MARKS[finding.level]}  {finding.text}")
        if found.estimate is not None:
            say(summary(found.estimate))
    if found.faults:
        raise typer.Exit(1)


def summary(estimate: object) -> str:
    """Return an estimate for the terminal."""
    parts = ", ".join(f"{name} {seconds:,.0f} s" for name, seconds in estimate.parts.items() if seconds >= 0.5)
    return (
        f"About {estimate.seconds:,.0f} s" + (f" ({parts})" if parts else "") + f", "
        f"{estimate.peak_memory_bytes / 2**30:.1f} GiB of memory at most, {estimate.disk_bytes / 2**20:,.0f} MiB of "
        f"disk; {estimate.basis}."
    )
