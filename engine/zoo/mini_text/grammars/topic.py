"""Headlines: what the main clause is about, whatever else is mentioned."""

from __future__ import annotations

from .common import Chance, Written, another, one, plain, some

WORDS = {
    "sport": "team match coach goal league striker race medal stadium season player referee",
    "business": "shares bank profit market trade company prices investors merger budget sales factory",
    "science": "study planet cells researchers telescope genes laboratory particles climate fossil theory experiment",
    "politics": "minister vote parliament election senate treaty law president party campaign mayor reform",
    "health": "patients hospital virus vaccine doctor diet clinic surgery nurse sleep disease medicine",
    "travel": "flight hotel tourists island airport train luggage beach cruise border visa resort",
    "arts": "museum painter singer film novel theatre concert gallery actor guitar festival poem",
    "crime": "police court thief judge prison trial lawyer suspect robbery fraud witness arrest",
}
CLASSES = tuple(WORDS)
LISTS = tuple(tuple(words.split()) for words in WORDS.values())
DOES = (
    "faces",
    "wins",
    "loses",
    "plans",
    "reports",
    "announces",
    "delays",
    "expects",
    "ends",
    "begins",
)
ASIDE = ("despite", "after", "before", "unlike", "without")


def write(chance: Chance, label: int, hardness: float) -> Written:
    """Write a headline; a harder one names as many things of another topic in an aside, before or after."""
    subject, thing = some(chance, LISTS[label], 2)
    main = f"{subject} {one(chance, DOES)} {thing}"
    if chance.random() >= 0.2 + 0.6 * hardness:
        return plain(main, one(chance, ("with", "and")), one(chance, LISTS[label]))
    other = another(chance, label, len(CLASSES))
    aside = f"{one(chance, ASIDE)} " + " and ".join(some(chance, LISTS[other], 2))
    parts = (aside, ",", main) if chance.random() < 0.5 else (main, aside)
    return plain(*parts, decoy=other)
