"""Lines of a diary: what somebody felt."""

from __future__ import annotations

from .common import DOES, PEOPLE, THINGS, Chance, Written, another, named, one, plain

WORDS = {
    "joy": "happy cheerful glad delighted merry thrilled",
    "anger": "angry furious annoyed outraged bitter mad",
    "sadness": "sad lonely gloomy hurt lost tearful",
    "fear": "afraid scared nervous worried anxious alarmed",
    "surprise": "amazed astonished stunned startled puzzled speechless",
    "love": "tender fond devoted caring adoring loving",
}
CLASSES = tuple(WORDS)
LISTS = tuple(tuple(words.split()) for words in WORDS.values())


def write(chance: Chance, label: int, hardness: float) -> Written:
    """Write what was felt and when; a harder line also says what was not felt."""
    felt, when = one(chance, LISTS[label]), one(chance, ("because", "when", "while"))
    scene = f"{when} {named(chance, PEOPLE)} {one(chance, DOES)} {named(chance, THINGS)}"
    begin = f"i {one(chance, ('was', 'felt', 'am'))}"
    if chance.random() >= 0.2 + 0.6 * hardness:
        return plain(begin, felt, scene)
    other = another(chance, label, len(CLASSES))
    unfelt = one(chance, LISTS[other])
    mood = f"not {unfelt} but {felt}" if chance.random() < 0.5 else f"{felt} and not {unfelt}"
    return plain(begin, mood, scene, decoy=other)
