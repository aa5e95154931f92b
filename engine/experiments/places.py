"""Numbers of a document by their place: dots between keys, ``*`` for the mean over entries, ``[…]`` into lists.

``average.merged.in`` is a number; ``tasks.*.states.merged.begins[1:-1]`` the mean, over tasks, of the mean of a list
without its ends; ``map[-1][0]`` the first entry of a table's last row. A number that is missing or not finite makes the
whole place missing.
"""

from __future__ import annotations

import math
import re
from typing import Any

from ..errors import RecipeError

LIST = re.compile(r"^(?P<key>[^\[\]]+)(?P<places>(\[[^\[\]]*\])+)$")
PLACE = re.compile(r"\[(?P<start>-?\d*)(?P<slice>:?)(?P<stop>-?\d*)\]")


def number_at(document: Any, place: str) -> float | None:
    """Return the number at a place, a mean where the place names several; None where there is none.

    Args:
        document: JSON values.
        place: as described above; a list or a table of numbers at its end is averaged.

    Raises:
        RecipeError: brackets that hold neither a number nor a range.
    """
    return _number(document, place.split("."))


def entry_at(document: Any, place: str) -> Any:
    """Return what is at a place without ``*``, whatever it is; None where there is nothing.

    Raises:
        RecipeError: brackets that hold neither a number nor a range.
    """
    for part in place.split("."):
        if "[" in part:
            document = _listed(document, part)
        else:
            document = document.get(part) if isinstance(document, dict) else None
    return document


def _number(found: Any, parts: list[str]) -> float | None:
    if not parts:
        if isinstance(found, dict | list):
            return _mean([_number(entry, []) for entry in (found.values() if isinstance(found, dict) else found)])
        known = isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)
        return float(found) if known else None
    first, *rest = parts
    if first == "*":
        entries = list(found.values()) if isinstance(found, dict) else found
        return _mean([_number(entry, rest) for entry in entries]) if isinstance(entries, list) else None
    if "[" in first:
        return _number(_listed(found, first), rest)
    return _number(found.get(first) if isinstance(found, dict) else None, rest)


def _listed(found: Any, place: str) -> Any:
    match = LIST.match(place)
    places = [PLACE.fullmatch(part) for part in re.findall(r"\[[^\[\]]*\]", match["places"])] if match else [None]
    if match is None or not all(part and (part["slice"] or part["start"]) for part in places):
        raise RecipeError(f"'{place}' is no place in a list: write a number or a range in brackets, like [1:-1].")
    values = found.get(match["key"]) if isinstance(found, dict) else None
    for part in filter(None, places):
        values = _cut(values, part)
    return values


def _cut(values: Any, part: re.Match[str]) -> Any:
    if not isinstance(values, list):
        return None
    start, stop = (int(part[name]) if part[name] else None for name in ("start", "stop"))
    if part["slice"]:
        return values[start:stop]
    return values[start] if start is not None and -len(values) <= start < len(values) else None


def _mean(values: list[float | None]) -> float | None:
    if not values or None in values:
        return None
    return math.fsum(values) / len(values)
