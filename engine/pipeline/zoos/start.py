"""Bases of other zoos that experts may start from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import ZooError
from ...zoo.encoders.architecture import architecture, unlike
from ...zoo.encoders.backbone import misfits
from ...zoo.folder import Zoo
from ...zoo.modalities import only_alike
from .request import Start

if TYPE_CHECKING:
    from ...store import Store


def other_base(asked: Start, zoo: Zoo, store: Store) -> Zoo:
    """Open the zoo whose base experts of another zoo start from.

    They are trained with the heads of the zoo that they go to, so features of both bases need the same width; and to be
    aligned and merged there, both need the same architecture.

    Raises:
        ZooError: there is none, it is of another kind of data or architecture, its samples are read otherwise, or its
            base is the zoo's own.
    """
    other = Zoo.open(asked.zoo)
    only_alike(zoo.manifest, other.manifest, "Bases are taken")
    names = f"the zoo '{zoo.manifest.name}'", f"'{other.manifest.name}'"
    if reason := unlike(zoo.folder, zoo.manifest, other.folder, other.manifest):
        raise ZooError(f"Experts of {names[0]} cannot start from the base of {names[1]}: {reason}")
    if odd := misfits(architecture(zoo.folder, zoo.manifest), other.weights("base")):
        raise ZooError(f"The base of {names[1]} does not fit the architecture of {names[0]}: {odd[0]}")
    first, second = (store.digest_file(each.weights_path("base")) for each in (zoo, other))
    if first == second:
        raise ZooError(
            f"The base of {names[1]} is that of {names[0]}, so there is no other to start from. Leave --from out."
        )
    return other
