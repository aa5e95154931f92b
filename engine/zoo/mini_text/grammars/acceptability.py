"""Sentences of learners: whether one is right, and what is wrong with it."""

from __future__ import annotations

from .common import ACTIONS, DOES, PEOPLE, PLACES, PLURALS, THINGS, TRAITS, Chance, Written, one, plain, some

CLASSES = ("correct", "agreement", "word order", "doubled word")


def write(chance: Chance, label: int, hardness: float) -> Written:
    """Write a sentence with at most one mistake; a harder swap lies anywhere, an easier one at the beginning."""
    person, does = one(chance, PEOPLE), one(chance, DOES)
    many = chance.random() < 0.5
    subject, verb = (PLURALS[person], ACTIONS[does]) if many else (person, does)
    if label == 1:
        verb = does if many else ACTIONS[does]
    words = ["the", subject, verb, "the", *some(chance, TRAITS, int(chance.random() < 0.6)), one(chance, THINGS)]
    words += ["in", "the", one(chance, PLACES)]
    if label == 2:
        at = int(chance.integers(len(words) - 1)) if chance.random() < hardness else 0
        words[at], words[at + 1] = words[at + 1], words[at]
    elif label == 3:
        at = int(chance.integers(len(words)))
        words.insert(at, words[at])
    return plain(*words, decoy=0 if label else None)
