"""Recipes as mergekit's YAML, for what both can express.

Facts: mergekit 0.1.4's merge configuration. What only MergeLens knows is kept under ``mergelens:``, which mergekit
ignores. Files are merged by ``mergekit-pytorch``, which knows no layers: gradients over depth are written as a value
for each block there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import yaml

from ...catalog import resolve
from ...catalog.by_layer import ByLayerParams, Clause, Setting
from ...errors import RecipeError
from ...recipe import MethodCall, Recipe
from ...zoo.folder import Zoo
from .mergekit_listed import FILES
from .mergekit_read import NO_GAMMA, OWN, count_blocks
from .mergekit_settings import NEARLY_ZERO, setting_of

Document = dict[str, Any]
THEIR_SETTINGS = {  # parameters that may differ between layers, by their names in mergekit
    "ties": {"density": "density", "scaling": "lambda"},
    "breadcrumbs": {"beta": "density", "gamma": "gamma", "scaling": "lambda"},
    "task_arithmetic": {"scaling": "lambda"},
    "slerp": {"t": "t"},
}


def write_mergekit(recipe: Recipe, base: str, models: Mapping[str, str], blocks: int = 12) -> str:
    """Return a recipe as mergekit's YAML.

    Args:
        recipe: what was merged.
        base: path or repository of the base.
        models: expert → its path or repository, in the order of the merge.
        blocks: how many the image encoder has; gradients over depth are written with a value for each.

    Raises:
        RecipeError: the method or a parameter has no counterpart, with the reason.
    """
    recipe = resolve(recipe)
    weights = dict.fromkeys(models, 1.0)
    if recipe.experts != "all":
        weights = {expert.name: expert.weight for expert in recipe.experts}
    if recipe.merge.method == "by_layer":
        document = _write_by_layer(recipe, weights, blocks, PurePath(base).suffix in FILES)
    else:
        document = _WRITERS.get(recipe.merge.method, _no_counterpart)(recipe, weights)
    listed = []
    for name, own in document.pop("of_models").items():
        if PurePath(base).suffix in FILES:
            own = {key: value or NEARLY_ZERO for key, value in own.items()}
        listed.append({"model": models[name], **({"parameters": own} if own else {})})
    out = {"merge_method": document.pop("merge_method"), "models": listed}
    if out["merge_method"] == "slerp":
        out["base_model"] = listed[0]["model"]
    elif out["merge_method"] not in ("linear", "karcher"):
        out["base_model"] = base
    keep = recipe.model_dump(mode="json", exclude={"merge", "experts"})
    out |= {"parameters": document["parameters"], "dtype": "float32"}
    out[OWN] = {"experts": list(models), "merge": recipe.merge.model_dump(mode="json"), **keep}
    return yaml.safe_dump(out, sort_keys=False, allow_unicode=True)


def model_paths(recipe: Recipe) -> tuple[str, dict[str, str], int]:
    """Return the base's file, the chosen experts' files and the number of blocks of a recipe's zoo."""
    zoo = Zoo.open(recipe.zoo)
    experts = {name: str(zoo.weights_path(name)) for name, _ in zoo.choose(recipe)}
    return str(zoo.weights_path("base")), experts, count_blocks(zoo)


def _write_linear(recipe: Recipe, weights: Mapping[str, float]) -> Document:
    _plain(recipe, weights)
    models = {name: {"weight": 1.0} for name in weights}
    return {"merge_method": "linear", "of_models": models, "parameters": {"normalize": True}}


def _write_arithmetic(recipe: Recipe, weights: Mapping[str, float]) -> Document:
    scaling = recipe.merge.params["scaling"]
    transform = _only_dare(recipe)
    own = {name: {"weight": scaling * weight, "density": 1.0} for name, weight in weights.items()}
    if transform is None:
        return {"merge_method": "task_arithmetic", "of_models": own, "parameters": {"normalize": False}}
    return _behind_dare("dare_linear", own, transform, {"normalize": False})


def _behind_dare(method: str, own: Mapping[str, Any], dare: MethodCall, switches: Document) -> Document:
    density = 1 - dare.params["drop_rate"]
    models = {name: {**parameters, "density": density} for name, parameters in own.items()}
    switches = {**switches, "rescale": bool(dare.params["rescale"])}
    return {"merge_method": method, "of_models": models, "parameters": switches}


def _write_ties(recipe: Recipe, weights: Mapping[str, float]) -> Document:
    transform = _only_dare(recipe)
    _weightless(weights)
    params = recipe.merge.params
    if params["scope"] != "tensor" or params["merge"] == "max" or params["frozen_parameters"] or params["scaling"] < 0:
        raise RecipeError(
            "mergekit's ties trims within each tensor and sums or averages; this recipe has scope "
            f"{params['scope']}, merge {params['merge']}, scaling {params['scaling']}, frozen_parameters "
            f"{params['frozen_parameters']}. Set scope: tensor, merge: sum or mean, and frozen_parameters: 0."
        )
    mean = params["merge"] == "mean"
    weight = 1.0 if mean else params["scaling"]  # a mean does not see weights, a sum is scaled by them
    switches = {"normalize": mean} | ({"lambda": params["scaling"]} if mean else {})
    if transform is not None:
        if params["density"] < 1:
            raise RecipeError("mergekit's dare_ties drops at random only; set the density of ties to 1.")
        return _behind_dare("dare_ties", {name: {"weight": weight} for name in weights}, transform, switches)
    own = {name: {"weight": weight, "density": params["density"]} for name in weights}
    return {"merge_method": "ties", "of_models": own, "parameters": switches}


def _write_breadcrumbs(recipe: Recipe, weights: Mapping[str, float]) -> Document:
    _plain(recipe, weights)
    params = recipe.merge.params
    _needs(params, scope="tensor")
    if params["gamma"] == 0:
        raise RecipeError(NO_GAMMA)
    own = {"weight": params["scaling"], "density": params["beta"], "gamma": params["gamma"]}
    return {"merge_method": "breadcrumbs", "of_models": {name: dict(own) for name in weights}, "parameters": {}}


def _write_slerp(recipe: Recipe, weights: Mapping[str, float]) -> Document:
    _plain(recipe, weights)
    _needs(recipe.merge.params, on="weights", scope="tensor")
    return _all_alike("slerp", weights, {"t": recipe.merge.params["t"]})


def _write_model_stock(recipe: Recipe, weights: Mapping[str, float]) -> Document:
    _plain(recipe, weights)
    _needs(recipe.merge.params, average="cosines", clamp=False, scope="tensor", by_task=False)
    return _all_alike("model_stock", weights, {"filter_wise": False})


def _write_karcher(recipe: Recipe, weights: Mapping[str, float]) -> Document:
    _plain(recipe, weights)
    params = recipe.merge.params
    _needs(params, on="weights")
    return _all_alike("karcher", weights, {"max_iter": params["max_iterations"], "tol": params["tolerance"]})


def _all_alike(method: str, weights: Mapping[str, float], parameters: Document) -> Document:
    return {"merge_method": method, "of_models": {name: {} for name in weights}, "parameters": parameters}


def _write_by_layer(recipe: Recipe, weights: Mapping[str, float], blocks: int, in_files: bool) -> Document:
    """Write the method of the tensors, and its settings in the place of plain numbers."""
    _plain(recipe, weights)
    params = ByLayerParams.model_validate(recipe.merge.params)
    if in_files != (params.naming == "open_clip"):
        raise RecipeError(
            "by_layer's names are " + params.naming + "'s, and the zoo's models are "
            f"{'files with names of open_clip' if in_files else 'folders of Hugging Face'}. Set naming accordingly."
        )
    call = MethodCall(method=params.method, params=params.inner({}).model_dump(mode="json"))
    document = _WRITERS.get(params.method, _no_counterpart)(recipe.model_copy(update={"merge": call}), weights)
    weighed = [setting for setting in params.settings if setting.parameter == "weight"]
    if weighed or params.normalise:
        _set_weights(document, params, call, weighed, lambda clauses: _written(clauses, blocks, in_files))
    for setting in params.settings:
        theirs = THEIR_SETTINGS.get(params.method, {}).get(setting.parameter)
        if setting.parameter == "weight":
            continue
        if theirs is None:
            raise RecipeError(f"mergekit has no setting by layer of {params.method}'s '{setting.parameter}'.")
        if theirs == "gamma" and any(0 in clause.values for clause in setting.clauses):
            raise RecipeError(NO_GAMMA)
        written = _written(setting.clauses, blocks, in_files)
        of_models = [own for own in document["of_models"].values() if theirs in own]
        for place in of_models or [document["parameters"]]:
            place[theirs] = written
    return document


def _set_weights(
    document: Document,
    params: ByLayerParams,
    call: MethodCall,
    weighed: Sequence[Setting],
    written: Callable[[Sequence[Clause]], Any],
) -> None:
    """Write weights by layer beside every model, λ apart: mergekit-pytorch fails where a model lacks a parameter."""
    if params.method not in THEIR_SETTINGS or params.method == "slerp" or call.params.get("merge") == "mean":
        raise RecipeError(f"mergekit has no weights by layer of {params.method} as it is computed here.")
    document["parameters"] |= {"lambda": call.params["scaling"], "normalize": params.normalise}
    for name, own in document["of_models"].items():
        clauses = [
            clause for expert in (name, "") for item in weighed if item.expert == expert for clause in item.clauses
        ]
        everything = next((place for place, clause in enumerate(clauses) if not clause.filter), len(clauses))
        own["weight"] = written([*clauses, Clause(values=(1.0,))][: everything + 1])


def _written(clauses: Sequence[Clause], blocks: int, in_files: bool) -> Any:
    return setting_of([_spread(clause, blocks, in_files) for clause in clauses])


def _spread(clause: Clause, blocks: int, in_files: bool) -> dict[str, Any]:
    """Return a clause as mergekit has it; of files, only those that are the same at all depths have one there."""
    if in_files and len(set(clause.values)) > 1:
        raise RecipeError(
            "mergekit-pytorch knows no layers, so a gradient cannot be written for files. Give a filter for each of "
            f"the {blocks} blocks, such as resblocks.0."
        )
    values = [value or NEARLY_ZERO if in_files else value for value in clause.values]
    return {"filter": clause.filter, "values": values}


def _no_counterpart(recipe: Recipe, weights: Mapping[str, float]) -> Document:
    raise RecipeError(
        f"mergekit has no counterpart of '{recipe.merge.method}' as it is computed here; "
        f"{', '.join(_WRITERS)} have one."
    )


def _plain(recipe: Recipe, weights: Mapping[str, float]) -> None:
    if recipe.transforms:
        raise RecipeError(f"mergekit has no counterpart of the transform '{recipe.transforms[0].method}' here.")
    _weightless(weights)


def _weightless(weights: Mapping[str, float]) -> None:
    if any(weight != 1.0 for weight in weights.values()):
        raise RecipeError("Weights of single experts are expressed with task_arithmetic only; leave them at 1 here.")


def _needs(params: Mapping[str, Any], **values: Any) -> None:
    given = {name: params.get(name, value) for name, value in values.items()}  # later ones are said where they are used
    wrong = [f"{name}: {given[name]} (mergekit has {value})" for name, value in values.items() if given[name] != value]
    if wrong:
        raise RecipeError(f"mergekit computes this method otherwise: {', '.join(wrong)}. Change the recipe.")


def _only_dare(recipe: Recipe) -> MethodCall | None:
    if not recipe.transforms:
        return None
    if len(recipe.transforms) > 1 or recipe.transforms[0].method != "dare":
        names = ", ".join(call.method for call in recipe.transforms)
        raise RecipeError(f"mergekit has no counterpart of the transforms {names}; dare alone has one.")
    return recipe.transforms[0]


_WRITERS: dict[str, Callable[[Recipe, Mapping[str, float]], Document]] = {
    "weight_average": _write_linear,
    "task_arithmetic": _write_arithmetic,
    "ties": _write_ties,
    "breadcrumbs": _write_breadcrumbs,
    "slerp": _write_slerp,
    "model_stock": _write_model_stock,
    "karcher": _write_karcher,
}
