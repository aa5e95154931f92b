"""Bases of other zoos that experts may start from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import ZooError
from ...zoo.encoders.backbone import architecture, misfits
from ...zoo.folder import Zoo
from ...zoo.modalities import only_made
from .request import Start

if TYPE_CHECKING:
    from ...store import Store

TEXT = "text_cfg"  # a part of architectures that no expert has


def other_base(asked: Start, zoo: Zoo, store: Store) -> Zoo:
    """Open the zoo whose base experts of another zoo start from.

    They are trained with the heads of the zoo that they go to, so features of both bases need the same width; and to be
    aligned and merged there, both need the same architecture.

    Raises:
        ZooError: there is none, it is of another kind of data or architecture, or its base is the zoo's own.
    """
    other = Zoo.open(asked.zoo)
    only_made(other.manifest, "Bases are taken")
    own, theirs = (architecture(each.folder, each.manifest) for each in (zoo, other))
    names = f"the zoo '{zoo.manifest.name}'", f"'{other.manifest.name}'"
    for part in sorted({*own, *theirs} - {TEXT}):
        if own.get(part) != theirs.get(part):
            raise ZooError(
                f"Experts of {names[0]} cannot start from the base of {names[1]}: {_difference(part, own, theirs)}. "
                "Choose a zoo of the same architecture."
            )
    if odd := misfits(own, other.weights("base")):
        raise ZooError(f"The base of {names[1]} does not fit the architecture of {names[0]}: {odd[0]}")
    first, second = (store.digest_file(each.weights_path("base")) for each in (zoo, other))
    if first == second:
        raise ZooError(
            f"The base of {names[1]} is that of {names[0]}, so there is no other to start from. Leave --from out."
        )
    return other


def _difference(part: str, own: dict[str, object], theirs: dict[str, object]) -> str:
    """Say in what a part of two architectures differs."""
    one, two = own.get(part), theirs.get(part)
    if not isinstance(one, dict) or not isinstance(two, dict):
        return f"its `{part}` is {two}, the zoo's {one}"
    key = next(key for key in sorted({*one, *two}) if one.get(key) != two.get(key))
    return f"its `{part}.{key}` is {two.get(key)}, the zoo's {one.get(key)}"
