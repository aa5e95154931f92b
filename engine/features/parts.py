"""Parts of an encoder by the names of its parameters, and parameters of one encoder in another's place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from ..errors import CalibrationError
from ..layouts import Layout, place_of

WHOLE = ("embedding", "block", "read-out")  # kinds of parts that make up an encoder, one after another


def parts_of(encoder: nn.Module, layout: Layout) -> list[tuple[int, str, tuple[str, ...]]]:
    """Return the parts of an encoder: block, kind, names of its parameters.

    Args:
        encoder: whose parameters they are.
        layout: how they are named.

    Raises:
        CalibrationError: an encoder of another kind.
    """
    names, blocks = [name for name, _ in encoder.named_parameters()], {}
    for name in names:
        if (place := place_of(name)) is not None and name.startswith(layout.blocks):
            blocks.setdefault(place.block, []).append((name, place.part))
    found = [(0, "embedding", tuple(name for name in names if name.startswith(layout.stem)))]
    for block, inside in sorted(blocks.items()):
        found.append((block + 1, "block", tuple(name for name, _ in inside)))
        for kind, starts in layout.parts.items():
            found.append((block + 1, kind, tuple(name for name, part in inside if part.startswith(starts))))
    last = tuple(name for name in names if layout.read_out and name.startswith(layout.read_out))
    found += [(len(blocks) + 1, "read-out", last)] if last else []
    left = set(names) - {name for _, kind, own in found if kind in WHOLE for name in own}
    if left or not blocks:
        raise CalibrationError(
            f"{type(encoder).__name__} is no {layout.family} transformer whose parts are known"
            + (f"; it has {min(left)} besides." if left else ".")
        )
    return found


@contextmanager
def transplanted(host: nn.Module, donor: nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Let parameters of one encoder hold another's values within this block."""
    own: Mapping[str, Tensor] = dict(host.named_parameters())
    given = dict(donor.named_parameters())
    kept = {name: own[name].data for name in names}
    try:
        for name in kept:
            own[name].data = given[name].data
        yield
    finally:
        for name, values in kept.items():
            own[name].data = values


def whole_parts(encoder: nn.Module, layout: Layout) -> list[tuple[str, ...]]:
    """Return the names of the parameters of embedding, every block, and read-out; none where there is no such part.

    Raises:
        CalibrationError: an encoder of another kind.
    """
    found = {(block, kind): names for block, kind, names in parts_of(encoder, layout) if kind in WHOLE}
    blocks = [names for (_, kind), names in found.items() if kind == "block"]
    return [found[0, "embedding"], *blocks, found.get((len(blocks) + 1, "read-out"), ())]
