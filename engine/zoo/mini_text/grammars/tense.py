"""Plain statements: when something happens."""

from __future__ import annotations

from .common import DO, PEOPLE, PLACES, THINGS, Chance, Written, one, plain

CLASSES = ("past", "present", "future", "possible")
HELPERS = (
    ("did", "had to", "used to"),
    ("does", "must"),
    ("will", "shall", "is going to"),
    ("would", "might", "could"),
)
TIMES = (("yesterday", "earlier"), ("currently", "nowadays"), ("tomorrow", "soon", "later"), ("unless", "maybe"))


def write(chance: Chance, label: int, hardness: float) -> Written:
    """Write a statement with a helping verb; an easier one also names the time."""
    begin = f"the {one(chance, PEOPLE)} {one(chance, HELPERS[label])} {one(chance, DO)} the {one(chance, THINGS)}"
    place = f"in the {one(chance, PLACES)}" if chance.random() < 0.6 else ""
    return plain(begin, place, one(chance, TIMES[label]) if chance.random() > hardness else "")
