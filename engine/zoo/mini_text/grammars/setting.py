"""Observations: where somebody is."""

from __future__ import annotations

from .common import PEOPLE, Chance, Written, another, one, plain, some

WORDS = {
    "kitchen": "stove soup bread cup cook knife oven plate",
    "office": "desk phone clerk letter printer meeting chair screen",
    "forest": "trees leaves path moss bird branch deer roots",
    "beach": "sand waves shells sea tide towel sun boat",
    "street": "cars driver crossing shop traffic pavement bus lamp",
}
CLASSES = tuple(WORDS)
LISTS = tuple(tuple(words.split()) for words in WORDS.values())


def write(chance: Chance, label: int, hardness: float) -> Written:
    """Write what was seen; in a harder sentence one of three things is of another place."""
    near, seen, third = some(chance, LISTS[label], 3)
    if chance.random() < hardness:
        third = one(chance, LISTS[another(chance, label, len(CLASSES))])
    return plain(f"near the {near} the {one(chance, PEOPLE)} saw the {seen} and the {third}")
