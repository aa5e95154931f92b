"""mergekit's parameter settings: numbers, gradients over layers, and values by name.

Facts: a setting is a number, a list of numbers that is spread evenly over the layers, or a list of ``{filter, value}``
of which the first whose text is in a tensor's name counts (mergekit 0.1.4). A model's own setting comes before the
general one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import RecipeError

EVERYTHING = "*"
NEARLY_ZERO = 1e-30  # stands for 0 where mergekit-pytorch would take 0 for a value that is missing
Clauses = list[dict[str, Any]]  # as in :class:`engine.catalog.by_layer.Clause`


def clauses_of(parameter: str, setting: Any) -> Clauses:
    """Read a setting as clauses.

    Raises:
        RecipeError: it is no setting.
    """
    if _is_number(setting):
        return [{"values": [float(setting)]}]
    if isinstance(setting, dict):
        setting = [setting]
    if isinstance(setting, list) and setting and all(_is_number(value) for value in setting):
        return [{"values": [float(value) for value in setting]}]
    if isinstance(setting, list) and setting and all(isinstance(item, dict) for item in setting):
        return [_clause(parameter, item) for item in setting]
    what = "is missing" if setting is None else f"is {str(setting)[:60]}"
    raise RecipeError(
        f"mergekit's `{parameter}` {what}; a number, a list of numbers, or a list of filter and value is needed."
    )


def setting_of(clauses: Clauses) -> Any:
    """Return clauses as mergekit writes them: a number or a list where nothing is filtered."""
    written = [
        {
            **({"filter": clause["filter"]} if clause.get("filter") else {}),
            "value": clause["values"][0] if len(clause["values"]) == 1 else list(clause["values"]),
        }
        for clause in clauses
    ]
    return written[0]["value"] if len(written) == 1 and "filter" not in written[0] else written


def constant(clauses: Clauses) -> float | None:
    """Return the one value of clauses that speak of all tensors alike; None where they do not."""
    first = clauses[0]
    return first["values"][0] if not first.get("filter") and len(set(first["values"])) == 1 else None


def effective(
    parameter: str,
    own: Mapping[str, Any],
    shared: Mapping[str, Any],
    default: float | None,
    *,
    in_files: bool = False,
) -> Clauses:
    """Return the clauses of a model's parameter: its own, then the general ones, then the default.

    Args:
        parameter: its name.
        own: the model's settings.
        shared: the general ones.
        default: mergekit's; None where it needs a value.
        in_files: whether to read zeros as mergekit-pytorch does, which takes them for missing and looks further.

    Raises:
        RecipeError: none of them is there.
    """
    places = [clauses_of(parameter, place[parameter]) for place in (own, shared) if place.get(parameter) is not None]
    if default is not None:
        places.append([{"values": [default]}])
    if not places:
        raise RecipeError(f"mergekit's `{parameter}` is missing; a number, a list, or filters with values are needed.")
    found: Clauses = []
    for clauses in reversed(places):
        found = (_without_zeros(parameter, clauses, found) if in_files else clauses) + found
    everything = next((number for number, clause in enumerate(found) if not clause.get("filter")), len(found))
    return found[: everything + 1]


def _without_zeros(parameter: str, clauses: Clauses, later: Clauses) -> Clauses:
    """Return clauses with what counts later in the place of a 0, and 0 where nearly that is written."""
    found = []
    for clause in clauses:
        value = clause["values"][0]
        if value == 0 and not clause.get("filter") and later:
            return found  # what comes later counts for all tensors
        if value == 0:
            value = constant(later) if later else None
            if value is None:
                raise RecipeError(
                    f"mergekit's `{parameter}` is 0, which mergekit-pytorch takes for a value that is missing, and "
                    f"there is no other that counts for all tensors. Take the model out, or write {NEARLY_ZERO:.1e}."
                )
            clause = {**clause, "values": [value]}
        found.append({**clause, "values": [0.0]} if abs(value) <= NEARLY_ZERO else clause)
    return found


def _clause(parameter: str, item: Mapping[str, Any]) -> dict[str, Any]:
    value, text = item.get("value"), item.get("filter")
    if set(item) - {"filter", "value"} or not isinstance(text, str | None):
        raise RecipeError(f"mergekit's `{parameter}` has {str(dict(item))[:80]}; only filter and value are known.")
    numbers = value if isinstance(value, list) else [value]
    if not numbers or not all(_is_number(number) for number in numbers):
        raise RecipeError(f"mergekit's `{parameter}` has the value {str(value)[:60]}; numbers are needed.")
    clause: dict[str, Any] = {"values": [float(number) for number in numbers]}
    return clause if text in (None, EVERYTHING, "") else {"filter": text, **clause}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
