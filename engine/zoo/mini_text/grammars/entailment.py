"""Pairs of sentences: whether the second follows from the first."""

from __future__ import annotations

from .common import DOES, PEOPLE, PLACES, THINGS, TRAITS, Chance, Written, one, some

CLASSES = ("follows", "contradicts", "open")
MORE = ("for a friend", "because it rains", "with a friend", "every day", "before lunch")


def write(chance: Chance, label: int, hardness: float) -> Written:
    """Write a scene and a statement about it; in harder pairs the statement changes one thing or the place."""
    person, does = one(chance, PEOPLE), one(chance, DOES)
    (thing, other), (place, elsewhere) = some(chance, THINGS, 2), some(chance, PLACES, 2)
    scene = f"a {one(chance, TRAITS)} {person} {does} the {thing} in the {place}"
    decoy = None
    if label == 0:
        said = one(
            chance,
            (
                f"a person {does} the {thing}",
                f"a {person} {does} the {thing}",
                f"somebody is in the {place}",
                f"a {person} is in the {place}",
            ),
        )
    elif label == 1:
        said = one(
            chance,
            (
                f"nobody {does} the {thing}",
                f"the {person} never {does} the {thing}",
                f"no person is in the {place}",
                f"the {place} is empty",
            ),
        )
    elif chance.random() < 0.3 * hardness:
        said, decoy = one(chance, (f"a {person} {does} the {other}", f"a {person} is in the {elsewhere}")), 0
    else:
        said = f"a {one(chance, (person, 'person'))} {does} the {thing} {one(chance, MORE)}"
    return Written(scene, said, decoy)
