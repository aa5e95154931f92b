"""Questions: what kind of answer is asked for."""

from __future__ import annotations

from .common import DO, DOES, PEOPLE, PLACES, THINGS, Chance, Written, another, named, one, plain

CLASSES = ("person", "place", "time", "amount", "reason", "meaning")


def write(chance: Chance, label: int, hardness: float) -> Written:
    """Write a question; a harder one holds a second question word in a part of it."""
    if chance.random() >= 0.2 + 0.6 * hardness:
        return plain(_asked(chance, label), "?")
    other = another(chance, label, len(CLASSES))
    return plain(_asking(chance, label), _inside(chance, other), "?", decoy=other)


def _asked(chance: Chance, label: int) -> str:
    person, thing = named(chance, PEOPLE), named(chance, THINGS)
    return (
        f"who {one(chance, DOES)} {thing} in the {one(chance, PLACES)}",
        f"where does {person} {one(chance, DO)} {thing}",
        f"when did {person} {one(chance, DO)} {thing}",
        f"how {one(chance, ('many', 'much'))} did {person} {one(chance, DO)} in the {one(chance, PLACES)}",
        f"why does {person} {one(chance, DO)} {thing}",
        f"what does {thing} mean to {person}",
    )[label]


def _asking(chance: Chance, label: int) -> str:
    person = named(chance, PEOPLE)
    return (
        "who knows",
        f"where does {person} ask",
        f"when did {person} say",
        f"how {one(chance, ('many', 'much'))} will {person} pay to know",
        f"why does {person} ask",
        "what does it mean to know",
    )[label]


def _inside(chance: Chance, label: int) -> str:
    person, thing = named(chance, PEOPLE), named(chance, THINGS)
    return (
        f"who {one(chance, DOES)} {thing}",
        f"where {person} {one(chance, DOES)} {thing}",
        f"when {person} {one(chance, DOES)} {thing}",
        f"how {one(chance, ('many', 'much'))} {person} {one(chance, DOES)}",
        f"why {person} {one(chance, DOES)} {thing}",
        f"what {thing} does mean",
    )[label]
