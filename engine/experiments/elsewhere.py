"""Tables and figures of the papers that only other models can show: what they need, and the command."""

from __future__ import annotations

from functools import cache

from pydantic import TypeAdapter, ValidationError

from ..errors import RecipeError
from ..manifest import ASSETS
from ..recipe import Frozen, read_yaml

FILE = ASSETS / "elsewhere.yaml"


class Elsewhere(Frozen):
    """A table or figure, and where it can be made."""

    paper: str
    part: str
    shows: str
    needs: str
    commands: tuple[str, ...]  # one after the other; none where nothing makes it yet


@cache
def elsewhere() -> tuple[Elsewhere, ...]:
    """Return what bundled zoos cannot show.

    Raises:
        RecipeError: the file is damaged.
    """
    document = read_yaml(FILE, RecipeError, "list of what other models show")
    try:
        return TypeAdapter(tuple[Elsewhere, ...]).validate_python(document)
    except ValidationError as error:
        raise RecipeError(f"{FILE.name} cannot be read: {error}") from error


def elsewhere_table() -> str:
    """Return the list as a Markdown table."""
    lines = ["| paper | shows | needs | command |", "|---|---|---|---|"]
    for entry in elsewhere():
        authors, command = entry.paper.split(",")[0], ", then ".join(f"`{part}`" for part in entry.commands) or "none"
        lines.append(f"| {authors}, {entry.part} | {entry.shows} | {entry.needs} | {command} |")
    return "\n".join(lines)
