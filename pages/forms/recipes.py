"""Recipes as the form sees them: are they valid, how do they differ, what is their zoo. No widgets."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from engine.catalog import CALIBRATORS, MERGE_METHODS, TRANSFORMS, resolve
from engine.catalog.row import Row
from engine.catalog.titles import calibrator_title
from engine.errors import EngineError
from engine.pipeline.run.findings import findings
from engine.recipe import MethodCall, Recipe, parse_recipe
from engine.zoo.folder import choose_experts
from pages.forms.params import COMMON
from pages.shared.zoos import zoo_manifest


def check(document: Mapping[str, Any]) -> tuple[Recipe | None, list[str]]:
    """Return the recipe with its defaults written out, or everything that is wrong with it."""
    try:
        recipe = parse_recipe(dict(document), origin="form")
        found = findings(recipe, zoo_manifest(recipe.zoo))
        problems = [finding.text for finding in found if finding.level == "error"]
        return (None, problems) if problems else (resolve(recipe), [])
    except EngineError as error:
        return None, [str(error)]


def differences(before: Recipe, after: Recipe) -> list[str]:
    """List the differences between two recipes, one phrase each; what is added has a plus, what is gone a minus."""
    try:
        before = resolve(before)
    except EngineError:
        return ["method"]
    rest = ("experts", "transforms", "merge", "calibrators")
    old, new = (_flat(recipe.model_dump(mode="json", exclude=set(rest))) for recipe in (before, after))
    others = [
        f"{_name_of(name)} {_value_text(old, name)} → {_value_text(new, name)}"
        for name in dict.fromkeys([*new, *old])
        if old.get(name) != new.get(name)
    ]
    found = [*_expert_changes(before, after), *_changes(before, after), *others]
    same = before.model_dump(exclude={"experts"}) == after.model_dump(exclude={"experts"})
    return found or ([] if same else ["other settings"])


def _expert_changes(before: Recipe, after: Recipe) -> list[str]:
    """List experts that came in, went out or are weighed otherwise."""
    old, new = (_weights(recipe) for recipe in (before, after))
    if old is None or new is None:
        said = ("all" if weights is None else ", ".join(weights) for weights in (old, new))
        return [f"experts {' → '.join(said)}"] if before.experts != after.experts else []
    if old == new:
        return [] if list(old) == list(new) else ["another order of experts"]
    gone, added = [name for name in old if name not in new], [name for name in new if name not in old]
    found = [f"{sign} {', '.join(names)}" for sign, names in (("+", added), ("−", gone)) if names]
    changed = [name for name in new if name in old and old[name] != new[name]]
    return found + [f"{name} weight {old[name]:g} → {new[name]:g}" for name in changed]


def _weights(recipe: Recipe) -> dict[str, float] | None:
    """Return the weights of a recipe's experts by name; None where all are asked for of a zoo that is not at hand."""
    if not isinstance(recipe.experts, str):
        return {expert.name: expert.weight for expert in recipe.experts}
    with suppress(EngineError):
        return dict(choose_experts(zoo_manifest(recipe.zoo), recipe))
    return None


def _changes(before: Recipe, after: Recipe) -> list[str]:
    """List methods that were added, changed and taken away, in the order of the way through them."""
    found = []
    for part, rows in (("transforms", TRANSFORMS), ("merge", MERGE_METHODS), ("calibrators", CALIBRATORS)):
        old, new = ({_ident(call): call for call in _calls(recipe, part)} for recipe in (before, after))
        found += [f"+ {named(call, rows, first=True)}" for ident, call in new.items() if ident not in old]
        for ident in (ident for ident in new if ident in old):
            found += _moved(old[ident], new[ident], rows, part)
        found += [f"\u2212 {named(call, rows)}" for ident, call in old.items() if ident not in new]
        if list(old) != list(new) and sorted(old) == sorted(new):
            found.append(f"another order of {part}")
    return found


def _calls(recipe: Recipe, part: str) -> Sequence[MethodCall]:
    return (recipe.merge,) if part == "merge" else getattr(recipe, part)


def _ident(call: MethodCall) -> str:
    return f"{call.method} {getattr(call, 'name', '')}"


def named(call: MethodCall, rows: Mapping[str, Row], *, first: bool = False) -> str:
    """Return a method's title; with ``first`` also the values of its first parameters of its own, such as λ and η."""
    title = calibrator_title(getattr(call, "name", ""), call.method)
    if not first:
        return title
    row = rows[call.method]
    first_ones = [name for name in row.params.model_fields if name in row.params.__annotations__ or name in COMMON]
    params = row.in_effect(call.params)
    own = [name for name in first_ones if type(params.get(name)) in (int, float)][:2]
    said = ", ".join(f"{_parameter(row, name)} {params[name]}" for name in own)
    return f"{title} ({said})" if said else title


def _moved(old: MethodCall, new: MethodCall, rows: Mapping[str, Row], part: str) -> list[str]:
    """List the parameters of a method that changed, and of a calibrator the model that it repairs."""
    row, title = rows[new.method], "" if part == "merge" else f"{named(new, rows)}: "
    found = [
        f"{title}{_parameter(row, name)} {_value_text(old.params, name)} → {value}"
        for name, value in new.params.items()
        if old.params.get(name) != value
    ]
    if getattr(old, "on", "") != getattr(new, "on", ""):
        found.append(f"{title}repairs {new.on}")
    return found


def _parameter(row: Row, name: str) -> str:
    """Return a parameter's symbol where its title ends with one, else its title in small letters."""
    title = row.params.model_fields[name].title or name.replace("_", " ")
    last = title.rpartition(" ")[2]
    return last if len(last) == 1 and not last.isascii() else title[:1].lower() + title[1:]


def _flat(value: Any, place: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        items = ((item.get("name") or item.get("method"), item) for item in value)
    else:
        return {place: value}
    return {
        name: leaf
        for part, inner in items
        for name, leaf in _flat(inner, f"{place}.{part}" if place else str(part)).items()
    }


def _name_of(place: str) -> str:
    parts = [part for part in place.split(".") if part not in ("params", "merge", "probe", "method", "calibrators")]
    return " ".join(parts[-2:]).replace("_", " ") or "method"


def _value_text(values: Mapping[str, Any], name: str) -> str:
    return str(values[name]) if name in values else "none"
