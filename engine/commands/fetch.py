"""The command that has a description's files, from the hub or from a local folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import EngineError


def fetch(
    zoo: Annotated[str, typer.Argument(help="A description's name (see `zoo list`), or a path to one.")],
    places: Annotated[
        list[Path] | None, typer.Option("--from", help="A local folder that holds the files; may be given again.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Download what is missing without asking.")] = False,
    images: Annotated[bool, typer.Option(help="Without images a zoo can be merged and exported, not scored.")] = True,
) -> None:
    """Find or download a zoo's files, convert them and make the zoo; what is missing is listed first."""
    from ..zoo.described.make import holding, make_zoo
    from .work import progress_line

    found = holding(zoo, places or ())
    if found is None:
        typer.echo(f"The zoo '{zoo}' is ready; there is nothing to fetch.")
        return
    found = found if images else found.without_images()
    for line in missing_lines(found, ask=True):
        typer.echo(line)
    if found.missing and not yes and not typer.confirm("Download this from the Hugging Face Hub?", default=False):
        raise EngineError("Nothing was downloaded.")
    folder = make_zoo(found, progress_line(), download=True)
    typer.echo(f"The zoo '{found.manifest.name}' is ready ({folder}).")


def missing_lines(found: object, *, ask: bool) -> list[str]:
    """List what is missing, a line each, with sizes.

    Args:
        found: a holding.
        ask: ask the hub for the sizes; False takes what can be told from the architecture.
    """
    lines, total, unknown = [], 0, 0
    for item in found.missing:
        size, text = _size_of(item, found) if ask else (item.about, "")
        total, unknown = total + size, unknown + (not size)
        shown = f"{size / 1e6:10,.1f} MB" if size else "size unknown ".rjust(13)
        lines.append(f"{shown}  {item.label}: {item.source}{text}")
    if lines:
        rest = f", and {unknown} of unknown size" if unknown else ""
        lines.append(f"{total / 1e9:.2f} GB in {len(lines) - unknown} source(s){rest} are not on this machine.")
    return lines


def _size_of(item: object, found: object) -> tuple[int, str]:
    """Return bytes as the hub says, else as far as they can be told, with the reason."""
    from ..zoo.described.fetch import list_remote

    try:
        return list_remote(item, found.manifest.backbone.architecture).size, ""
    except EngineError as error:
        return item.about, f" ({error})"
