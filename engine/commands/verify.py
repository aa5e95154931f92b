"""The command that does a merge again and compares."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .printing import progress_line, say

SHOWN = 5


def verify(
    file: Annotated[Path, typer.Argument(help="A file of `merge RECIPE` or `export --to NAME.safetensors`.")],
    zoo: Annotated[str | None, typer.Option(help="Where the zoo lies now; default: as its recipe says.")] = None,
) -> None:
    """Check that a merged file is what its header says: the same inputs, merged again, give the same to the bit.

    Methods that look at images look at the same ones again; on another machine they may differ by rounding.
    """
    from ..pipeline.export.verify import TOLERANCE
    from ..pipeline.export.verify import verify as verify_file

    found = verify_file(file, zoo, progress_line())
    for name in found.changed:
        say(f"Changed since: {name} has another digest than when the file was made.")
    for name in found.differing[:SHOWN]:
        say(f"Differs: {name}")
    if found.differing:
        say(
            f"{len(found.differing)} of {found.tensors} tensors differ, by {found.largest:.3g} at most, together by "
            f"{found.distance:.2g} of the length of what was merged."
        )
    if found.receipt not in ("equal", "missing"):
        say(f"The receipt beside the file differs in '{found.receipt}' from what the file gives.")
    if not found.holds:
        raise typer.Exit(1)
    how = "equal to the bit"
    if found.differing:
        how = f"the same within {TOLERANCE:g} of that length, as rounding in forward passes allows"
    say(f"Verified: {found.tensors} tensors are {how}, and the inputs are the same.")
    if found.images:
        say(f"It looked at the same images of {', '.join(found.images)}.")
    if found.receipt == "equal":
        say("The receipt beside it says the same as one made now.")
