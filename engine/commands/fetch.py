"""The command that has a description's files, from the hub or from a local folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import EngineError
from .printing import progress_line, say, say_line

if TYPE_CHECKING:
    from ..zoo.described.fetch import Unreachable
    from ..zoo.described.make import Holding


def fetch(
    zoo: Annotated[
        str, typer.Argument(help="A description's name (see `zoo list`), or a path to one or to a FusionBench pool.")
    ],
    places: Annotated[
        list[Path] | None, typer.Option("--from", help="A local folder that holds the files; may be given again.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Download what is missing without asking.")] = False,
    images: Annotated[bool, typer.Option(help="Without images a zoo can be merged and exported, not scored.")] = True,
    without: Annotated[
        list[str] | None, typer.Option(help="A task whose images are left out, such as imagenet; may be given again.")
    ] = None,
    templates: Annotated[
        str, typer.Option(help="Prompts of built heads: openai, fusionbench or a file of templates; default: its own.")
    ] = "",
) -> None:
    """Find or download a zoo's files, convert them and make the zoo; what is missing is listed first."""
    from ..pipeline.foreign.fusionbench_pool import described
    from ..zoo.described.fetch import Unreachable, without_network
    from ..zoo.described.make import holding, make_zoo

    asked = zoo
    zoo, not_taken = described(zoo)
    for sentence in not_taken:
        say(f"Not taken from the pool: {sentence}")
    found = holding(zoo, places or (), templates)
    if found is None:
        say(f"The zoo '{asked}' is ready; there is nothing to fetch.")
        return
    found = found.without_images(without or ()) if images else found.without_images()
    lines, silent = missing_lines(found)
    for line in lines:
        say_line(line)
    if silent is not None:
        raise Unreachable(without_network(silent, found.missing))
    if found.missing and not yes and not typer.confirm("Download this from the Hugging Face Hub?", default=False):
        raise EngineError("Nothing was downloaded.")
    folder = make_zoo(found, progress_line(), download=True)
    say(f"The zoo '{found.manifest.name}' is ready ({folder}).")
    if zoo != asked or found.prompts:
        say("Recipes name it by this folder.")


def missing_lines(found: Holding) -> tuple[list[str], Unreachable | None]:
    """List what is missing, a line each, with the sizes that the hub says.

    Returns:
        The lines; and why the hub did not answer, where it did not: sizes are then as far as they can be told.
    """
    from ..zoo.described.fetch import Unreachable, list_remote
    from ..zoo.described.sources import HUB, TAG

    lines, total, unknown, silent = [], 0, 0, None
    for item in found.missing:
        size, reason = item.about, ""
        try:
            if silent is None and item.scheme in (HUB, TAG):
                size = list_remote(item, found.manifest.backbone.architecture).size
        except Unreachable as error:
            silent = error
        except EngineError as error:
            reason = f" ({error})"
        total, unknown = total + size, unknown + (not size)
        shown = f"{size / 1e6:10,.1f} MB" if size else "size unknown ".rjust(13)
        lines.append(f"{shown}  {item.label}: {item.source}{reason}")
    if lines:
        rest = f", and {unknown} of unknown size" if unknown else ""
        lines.append(f"{total / 1e9:.2f} GB in {len(lines) - unknown} source(s){rest} are not on this machine.")
    return lines, silent
