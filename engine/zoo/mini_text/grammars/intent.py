"""Requests to an assistant: what it is to do."""

from __future__ import annotations

from .common import PEOPLE, Chance, Written, another, one, plain

WORDS = {
    "alarm": ("set stop change", "alarm clock timer reminder"),
    "music": ("play repeat pause", "song album radio guitar"),
    "weather": ("check predict tell", "rain forecast temperature snow"),
    "booking": ("book reserve cancel", "ticket seat flight room"),
    "order": ("order deliver bring", "pizza soup cake bread"),
    "message": ("send write answer", "message letter note mail"),
    "lights": ("light dim brighten", "lamp hall kitchen window"),
    "route": ("find show plan", "way route street station"),
}
CLASSES = tuple(WORDS)
LISTS = tuple((tuple(verbs.split()), tuple(things.split())) for verbs, things in WORDS.values())
BEGINNINGS = ("please", "can you", "i want to", "could you", "")


def write(chance: Chance, label: int, hardness: float) -> Written:
    """Write a request; a harder one also says, in as many words, what is not wanted."""
    wanted, whom = _deed(chance, label), f"for the {one(chance, PEOPLE)}"
    begin = one(chance, BEGINNINGS)
    if chance.random() >= 0.2 + 0.6 * hardness:
        return plain(begin, wanted, whom)
    other = another(chance, label, len(CLASSES))
    unwanted = f"do not {_deed(chance, other)}"
    parts = (begin, wanted, whom, "and", unwanted) if chance.random() < 0.5 else (unwanted, ",", begin, wanted, whom)
    return plain(*parts, decoy=other)


def _deed(chance: Chance, label: int) -> str:
    verbs, things = LISTS[label]
    return f"{one(chance, verbs)} the {one(chance, things)}"
