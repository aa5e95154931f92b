"""Scraps of paper: what kind of text they are from."""

from __future__ import annotations

from .common import THINGS, TRAITS, Chance, Written, named, one, plain, some

WORDS = {
    "recipe": "mix stir bake add spoon flour",
    "contract": "hereby party clause agreed terms owner",
    "diary": "dear myself tonight dreamed remember wish",
    "manual": "press button insert remove switch battery",
    "chat": "hey lol ok cool bro wow",
}
CLASSES = tuple(WORDS)
LISTS = tuple(tuple(words.split()) for words in WORDS.values())


def write(chance: Chance, label: int, hardness: float) -> Written:
    """Write a scrap; in a harder one only one word gives it away."""
    first, second = some(chance, LISTS[label], 2)
    middle = second if chance.random() > hardness else one(chance, TRAITS)
    return plain(first, named(chance, THINGS), one(chance, ("and", "then", "or")), middle, named(chance, THINGS))
