"""Several merges of mergekit in one file, the later ones of what the earlier ones give, as one recipe.

Facts: ``mergekit-multi`` of mergekit 0.1.4. Its file holds YAML documents with a ``name`` each, all but one; a model
whose path is such a name is that merge's result, and the merge without a name is the final one. A recipe merges a zoo's
experts once, so results that are merged again must be sums of weighted task vectors: their weights are multiplied out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...catalog import resolve
from ...errors import RecipeError, nearest
from ...recipe import Recipe, parse_recipe, read_yaml
from .mergekit_read import is_mergekit, recipe_of

MAX_MERGES = 100
Weights = dict[str, float]


def is_several(path: Path) -> bool:
    """Tell whether a file holds several merges, or one that has a name."""
    found = read_yaml(path, RecipeError, "file", several=True)
    return any(map(is_mergekit, found)) and (len(found) > 1 or "name" in found[0])


def read_several(
    path: Path,
    zoo: str,
    experts: Mapping[str, tuple[str, ...]],
    part: str = "",
    blocks: Callable[[], int] = lambda: 0,
) -> Recipe:
    """Read one merge of a file as a recipe on a zoo.

    Args:
        path: the YAML file.
        zoo: the zoo's name or path.
        experts: the zoo's experts → texts that a model path may name them by.
        part: the merge's name; '' means the final one.
        blocks: says how many layers the zoo's models have; see :func:`.mergekit_read.read_mergekit`.

    Raises:
        RecipeError: there is no such merge, results go in a circle, or one is merged again that is no weighted sum.
    """
    merges = _merges(path)
    chosen = part or _final(merges, path)
    if chosen not in merges:
        raise RecipeError(
            f"{path.name} has no merge '{chosen[:60]}'. {nearest(chosen, [name for name in merges if name])}"
        )
    if not _used(merges[chosen], merges):
        return recipe_of(merges[chosen], path, zoo, experts, blocks)
    weights = _weights(chosen, merges, lambda document, seen: recipe_of(document, path, zoo, seen, blocks), experts, ())
    listed = [{"name": name, "weight": weight} for name, weight in weights.items()]
    merge = {"method": "task_arithmetic", "params": {"scaling": 1.0}}
    return resolve(parse_recipe({"zoo": zoo, "experts": listed, "merge": merge}, origin=f"configuration {path.name}"))


def _merges(path: Path) -> dict[str, dict[str, Any]]:
    """Return the merges of a file by name, the final one by ''."""
    found: dict[str, dict[str, Any]] = {}
    documents = [
        item for item in read_yaml(path, RecipeError, "mergekit configuration", several=True) if item is not None
    ]
    if len(documents) > MAX_MERGES:
        raise RecipeError(f"{path.name} holds {len(documents)} merges; at most {MAX_MERGES} are read.")
    for document in documents:
        if not is_mergekit(document):
            raise RecipeError(f"A document of {path.name} is no mergekit configuration: it has no merge_method.")
        name = document.get("name", "")
        if not isinstance(name, str):
            raise RecipeError(f"A merge's `name` in {path.name} is {str(name)[:60]}; text is expected.")
        if name in found:
            raise RecipeError(
                f"{path.name} has {'two merges named ' + name[:60] if name else 'two merges without a name'}."
            )
        found[name] = {key: value for key, value in document.items() if key != "name"}
    return found


def _final(merges: Mapping[str, Mapping[str, Any]], path: Path) -> str:
    """Return the merge without a name, else the only one that no other merge takes."""
    if "" in merges:
        return ""
    used = {name for document in merges.values() for name in _used(document, merges)}
    ends = [name for name in merges if name not in used]
    if len(ends) != 1:
        raise RecipeError(f"{path.name} has no final merge; choose one with --part: {', '.join(merges)}.")
    return ends[0]


def _used(document: Mapping[str, Any], merges: Mapping[str, Any]) -> list[str]:
    """Return the merges whose results a merge takes: as models, in slices or as its base."""
    entries = [item for item in document.get("models") or () if isinstance(item, dict)]
    for part in document.get("slices") or ():
        entries += [
            item for item in (part.get("sources") or () if isinstance(part, dict) else ()) if isinstance(item, dict)
        ]
    names = [item.get("model") for item in entries] + [document.get("base_model")]
    return [name for name in names if isinstance(name, str) and name and name in merges]


def _weights(
    name: str,
    merges: Mapping[str, dict[str, Any]],
    read: Callable[[Mapping[str, Any], Mapping[str, tuple[str, ...]]], Recipe],
    experts: Mapping[str, tuple[str, ...]],
    inside: tuple[str, ...],
) -> Weights:
    """Return the weights of the experts' task vectors whose sum a merge is."""
    title = f"The merge {name[:60] or 'without a name'}"
    if name in inside:
        raise RecipeError(f"{title} takes its own result, by way of {', '.join(inside)}.")
    document = merges[name]
    if document.get("base_model") in merges:
        raise RecipeError(
            f"{title} starts from another merge's result; a recipe's task vectors start from the zoo's base."
        )
    used = _used(document, merges)
    tokens = {merge: f"mergelens{number}merge" for number, merge in enumerate(dict.fromkeys(used))}
    seen = {**experts, **{token: () for token in tokens.values()}}
    recipe = resolve(read(_renamed(document, tokens), seen))
    if recipe.transforms or recipe.merge.method not in ("task_arithmetic", "weight_average"):
        method = f"{recipe.merge.method}{' after dare' if recipe.transforms else ''}"
        again = "its result is merged again" if inside else f"it merges the result of {', '.join(used)}"
        raise RecipeError(
            f"{title} is {method}, and {again}. A recipe merges a zoo's experts once; only linear and task_arithmetic "
            "with one weight a model can be multiplied out. Convert each merge by itself with --part, and import what "
            "it gives as an expert."
        )
    found: Weights = {}
    for expert in recipe.experts:
        share = recipe.merge.params.get("scaling", 1.0) * expert.weight
        share = expert.weight / len(recipe.experts) if recipe.merge.method == "weight_average" else share
        earlier = next((merge for merge, token in tokens.items() if token == expert.name), None)
        parts = {expert.name: 1.0}
        if earlier is not None:
            parts = _weights(earlier, merges, read, experts, (*inside, name))
        for part, weight in parts.items():
            found[part] = found.get(part, 0.0) + share * weight
    return found


def _renamed(document: Mapping[str, Any], tokens: Mapping[str, str]) -> dict[str, Any]:
    """Return a merge whose models are other merges' results under names that no expert has."""

    def model(item: Any) -> Any:
        return (
            {**item, "model": tokens.get(item["model"], item["model"])}
            if isinstance(item, dict) and isinstance(item.get("model"), str)
            else item
        )

    out = dict(document)
    if isinstance(out.get("models"), list):
        out["models"] = [model(item) for item in out["models"]]
    if isinstance(out.get("slices"), list):
        out["slices"] = [
            {**part, "sources": [model(item) for item in part["sources"]]}
            if isinstance(part, dict) and isinstance(part.get("sources"), list)
            else part
            for part in out["slices"]
        ]
    return out
