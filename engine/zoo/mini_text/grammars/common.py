"""Words that all grammars share, so that their experts have to move the same weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

Chance = np.random.Generator


class Written(NamedTuple):
    """A sentence, its second part ('' where there is none), and the class that its words alone would suggest."""

    text: str
    second: str
    decoy: int | None


PEOPLE = (
    "man",
    "woman",
    "boy",
    "girl",
    "doctor",
    "teacher",
    "farmer",
    "driver",
    "student",
    "nurse",
    "singer",
    "cook",
    "clerk",
    "pilot",
    "painter",
    "lawyer",
    "guest",
)
PLURALS = {person: f"{person}s" for person in PEOPLE} | {"man": "men", "woman": "women"}
THINGS = (
    "soup",
    "bread",
    "book",
    "lamp",
    "table",
    "phone",
    "ticket",
    "coat",
    "letter",
    "bag",
    "cup",
    "guitar",
    "ball",
    "map",
    "box",
    "chair",
    "camera",
)
PLACES = (
    "park",
    "kitchen",
    "office",
    "street",
    "garden",
    "station",
    "school",
    "market",
    "hotel",
    "beach",
    "library",
    "hospital",
    "cafe",
)
TRAITS = (
    "tall",
    "young",
    "quiet",
    "small",
    "red",
    "green",
    "heavy",
    "new",
    "thin",
    "dark",
    "round",
    "wet",
    "clean",
)
ACTIONS: Mapping[str, str] = {
    "eats": "eat",
    "opens": "open",
    "carries": "carry",
    "finds": "find",
    "sells": "sell",
    "paints": "paint",
    "buys": "buy",
    "drops": "drop",
    "cleans": "clean",
    "holds": "hold",
    "watches": "watch",
    "takes": "take",
    "wants": "want",
    "hides": "hide",
}
DOES, DO = tuple(ACTIONS), tuple(ACTIONS.values())
FILLERS = (
    "well",
    "honestly",
    "anyway",
    "uh",
    "really",
    "today",
    "again",
    "then",
    "perhaps",
    "actually",
    "so",
    "now",
)


def one(chance: Chance, words: Sequence[str]) -> str:
    """Draw a word."""
    return words[int(chance.integers(len(words)))]


def some(chance: Chance, words: Sequence[str], count: int) -> list[str]:
    """Draw several words without repeating one."""
    return [words[number] for number in chance.permutation(len(words))[:count]]


def another(chance: Chance, label: int, count: int) -> int:
    """Draw a class that is not ``label``."""
    return int((label + 1 + chance.integers(count - 1)) % count)


def named(chance: Chance, words: Sequence[str]) -> str:
    """Write a noun with its article, and half of the time with an adjective."""
    return f"the {one(chance, TRAITS)} {one(chance, words)}" if chance.random() < 0.5 else f"the {one(chance, words)}"


def plain(*parts: str, decoy: int | None = None) -> Written:
    """Join the parts that are not empty into a sentence without a second part."""
    return Written(" ".join(part for part in parts if part), "", decoy)
