"""Reviews of places to eat and stay: what somebody liked."""

from __future__ import annotations

from .common import Chance, Written, one, plain, some

CLASSES = ("positive", "negative", "mixed", "neutral")
GOOD = (
    "good",
    "great",
    "lovely",
    "friendly",
    "fresh",
    "tasty",
    "bright",
    "perfect",
    "kind",
    "quick",
    "warm",
    "excellent",
    "charming",
    "fair",
)
BAD = (
    "bad",
    "awful",
    "rude",
    "cold",
    "dirty",
    "slow",
    "broken",
    "terrible",
    "stale",
    "noisy",
    "dull",
    "bitter",
    "lazy",
    "ugly",
)
PLAIN = (
    "average",
    "ordinary",
    "usual",
    "local",
    "standard",
    "typical",
    "available",
    "present",
)
ASPECTS = (
    "food",
    "service",
    "room",
    "waiter",
    "soup",
    "bread",
    "price",
    "view",
    "music",
    "seat",
    "staff",
    "cook",
    "hotel",
    "cafe",
    "table",
)
STRENGTHS = ("very", "so", "quite", "rather")


def write(chance: Chance, label: int, hardness: float) -> Written:
    """Write two opinions; "not" turns one round, the oftener the harder."""
    signs = {0: [1, 1], 1: [-1, -1], 2: [1, -1], 3: [0, 0]}[label]
    signs = [signs[place] for place in chance.permutation(2)]
    if label < 2 and chance.random() < hardness / 2:
        signs[int(chance.integers(2))] = 0
    clauses, shown = zip(*(_opinion(chance, sign, hardness) for sign in signs), strict=True)
    link = "but" if label == 2 or chance.random() < 0.15 else "and"
    seen = _by_words(shown)
    return plain(clauses[0], link, clauses[1], decoy=seen if seen != label else None)


def _opinion(chance: Chance, sign: int, hardness: float) -> tuple[str, int]:
    """Return a clause and the sign of its adjective."""
    aspect = one(chance, ASPECTS)
    if sign == 0:
        return f"the {aspect} was {one(chance, PLAIN)}", 0
    if chance.random() < 0.15 + 0.5 * hardness:
        return f"the {aspect} was not {one(chance, BAD if sign > 0 else GOOD)}", -sign
    words = ["the", aspect, "was", *some(chance, STRENGTHS, int(chance.random() < 0.4))]
    return " ".join([*words, one(chance, GOOD if sign > 0 else BAD)]), sign


def _by_words(signs: tuple[int, ...]) -> int:
    """Return the class that adjectives suggest to somebody who reads over every "not"."""
    if {1, -1} <= set(signs):
        return 2
    return 0 if 1 in signs else 1 if -1 in signs else 3
