"""The command that aligns experts of another base."""

from __future__ import annotations

from typing import Annotated

import typer

from ..catalog import ALIGNMENTS
from .merge import params_from
from .printing import say


def align(
    zoo: Annotated[str, typer.Argument(help="A zoo folder with experts that name another base in zoo.yaml.")],
    expert: Annotated[list[str] | None, typer.Option(help="Only this expert; again for more.")] = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(ALIGNMENTS)}.")] = "weight_matching",
    param: Annotated[
        list[str] | None, typer.Option(help="A parameter of the method, such as groups=units; again for more.")
    ] = None,
) -> None:
    """Reorder units of experts so that they fit the zoo's base; what each expert computes stays the same.

    An expert that was trained from another base says so in zoo.yaml (`base: FILE`). The aligned weights are written
    into the folder `aligned`, and zoo.yaml names them.
    """
    from ..pipeline.zoos.align import align_experts

    align_experts(zoo, method, params_from(param or []), expert or [], say)
    say(f"The aligned experts are in {zoo}; they compute the same, which was checked in float64.")
