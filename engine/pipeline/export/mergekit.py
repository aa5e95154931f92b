"""mergekit's YAML in and out, for what both can express.

Facts: mergekit 0.1.4's merge configuration and its generalized task arithmetic. Its ``ties`` trims within each tensor
and by default divides by the summed weights that agree, while the vision papers trim over the whole model and sum, so
the variant is always written out. What only MergeLens knows is kept under ``mergelens:``, which mergekit ignores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

import yaml

from ...catalog import resolve
from ...errors import RecipeError
from ...recipe import MethodCall, Recipe, parse_recipe, read_yaml
from ...zoo.folder import Zoo

OWN = "mergelens"
REFUSED = {
    "slices": "slices assemble layers of language models",
    "modules": "modules address parts of multimodal language models",
    "tokenizer_source": "image encoders have no tokenizer",
    "tokenizer": "image encoders have no tokenizer",
    "chat_template": "image encoders have no chat template",
}
KNOWN = ("merge_method", "base_model", "models", "parameters", "dtype", "out_dtype", OWN)
SWITCHES = ("normalize", "rescale", "lambda", "int8_mask")
Models = list[tuple[str, dict[str, Any]]]  # path, its own parameters


def write_mergekit(recipe: Recipe, base: str, models: Mapping[str, str]) -> str:
    """Return a recipe as mergekit's YAML.

    Args:
        recipe: what was merged.
        base: path or repository of the base.
        models: expert → its path or repository, in the order of the merge.

    Raises:
        RecipeError: the method or a parameter has no counterpart, with the reason.
    """
    recipe = resolve(recipe)
    weights = dict.fromkeys(models, 1.0)
    if recipe.experts != "all":
        weights = {expert.name: expert.weight for expert in recipe.experts}
    document: dict[str, Any] = _WRITERS.get(recipe.merge.method, _no_counterpart)(recipe, weights)
    listed = []
    for name, own in document.pop("of_models").items():
        listed.append({"model": models[name], **({"parameters": own} if own else {})})
    out = {"merge_method": document.pop("merge_method"), "models": listed}
    if out["merge_method"] != "linear":
        out["base_model"] = base
    keep = recipe.model_dump(mode="json", exclude={"merge", "experts"})
    out |= {"parameters": document["parameters"], "dtype": "float32"}
    out[OWN] = {"experts": list(models), "merge": recipe.merge.model_dump(mode="json"), **keep}
    return yaml.safe_dump(out, sort_keys=False, allow_unicode=True)


def read_mergekit(path: Path, zoo: str, experts: Mapping[str, tuple[str, ...]]) -> Recipe:
    """Read mergekit's YAML as a recipe on a zoo.

    Args:
        path: the YAML file.
        zoo: the zoo's name or path.
        experts: the zoo's experts → texts that a model path may name them by (task, file).

    Raises:
        RecipeError: what cannot be expressed, by name; or a model that the zoo does not have.
    """
    document = read_yaml(path, RecipeError, "mergekit configuration")
    if not isinstance(document, dict) or not isinstance(document.get("merge_method"), str):
        raise RecipeError(f"{path.name} is no mergekit configuration: it has no merge_method.")
    for key in document:
        if key in REFUSED:
            raise RecipeError(f"`{key}` is not supported: {REFUSED[key]}. Take it out.")
        if key not in KNOWN:
            raise RecipeError(f"mergekit's key `{str(key)[:40]}` is not known here. Take it out.")
    method = document["merge_method"]
    if method not in _READERS:
        raise RecipeError(f"mergekit's method '{method[:40]}' has no counterpart here; {', '.join(_READERS)} do.")
    models = _models(document)
    names = [_expert_of(model, experts) for model, _ in models]
    shared = document.get("parameters") or {}
    if not isinstance(shared, dict):
        raise RecipeError("mergekit's `parameters` is no table.")
    recipe = _READERS[method](models, names, shared)
    own = document.get(OWN) if isinstance(document.get(OWN), dict) else {}
    kept = {key: own[key] for key in ("calibrators", "probe", "seeds") if key in own}
    return resolve(parse_recipe({"zoo": zoo, **kept, **recipe}, origin=f"configuration {path.name}"))


def is_mergekit(document: Any) -> bool:
    """Tell whether a parsed YAML document is a mergekit configuration."""
    return isinstance(document, dict) and "merge_method" in document


def model_paths(recipe: Recipe) -> tuple[str, dict[str, str]]:
    """Return the base's file and the chosen experts' files of a recipe's zoo."""
    zoo = Zoo.open(recipe.zoo)
    experts = {name: str(zoo.weights_path(name)) for name, _ in zoo.choose(recipe)}
    return str(zoo.weights_path("base")), experts


def expert_spellings(zoo: str) -> dict[str, tuple[str, ...]]:
    """Return a zoo's experts with what a path may call them: their task, their file, where they came from."""
    opened = Zoo.open(zoo)
    found = {}
    for expert in opened.manifest.experts:
        own = (expert.task, expert.weights, str(opened.folder / expert.weights))
        found[expert.name] = tuple(text for text in own if text)
    return found


def _write_linear(recipe: Recipe, weights: Mapping[str, float]) -> dict[str, Any]:
    _plain(recipe, weights)
    models = {name: {"weight": 1.0} for name in weights}
    return {"merge_method": "linear", "of_models": models, "parameters": {"normalize": True}}


def _write_arithmetic(recipe: Recipe, weights: Mapping[str, float]) -> dict[str, Any]:
    scaling = recipe.merge.params["scaling"]
    transform = _only_dare(recipe)
    own = {name: {"weight": scaling * weight} for name, weight in weights.items()}
    if transform is None:
        return {"merge_method": "task_arithmetic", "of_models": own, "parameters": {"normalize": False}}
    density = 1 - transform.params["drop_rate"]
    own = {name: {**parameters, "density": density} for name, parameters in own.items()}
    switches = {"normalize": False, "rescale": bool(transform.params["rescale"])}
    return {"merge_method": "dare_linear", "of_models": own, "parameters": switches}


def _write_ties(recipe: Recipe, weights: Mapping[str, float]) -> dict[str, Any]:
    _plain(recipe, weights)
    params = recipe.merge.params
    if params["scope"] != "tensor" or params["merge"] == "max" or params["frozen_parameters"] or params["scaling"] < 0:
        raise RecipeError(
            "mergekit's ties trims within each tensor and sums or averages; this recipe has scope "
            f"{params['scope']}, merge {params['merge']}, scaling {params['scaling']}, frozen_parameters "
            f"{params['frozen_parameters']}. Set scope: tensor, merge: sum or mean, and frozen_parameters: 0."
        )
    mean = params["merge"] == "mean"
    weight = 1.0 if mean else params["scaling"]  # a mean does not see weights, a sum is scaled by them
    own = {name: {"weight": weight, "density": params["density"]} for name in weights}
    switches = {"normalize": mean} | ({"lambda": params["scaling"]} if mean else {})
    return {"merge_method": "ties", "of_models": own, "parameters": switches}


def _no_counterpart(recipe: Recipe, weights: Mapping[str, float]) -> dict[str, Any]:
    raise RecipeError(
        f"mergekit has no counterpart of '{recipe.merge.method}' as it is computed here; "
        f"{', '.join(_WRITERS)} have one."
    )


def _plain(recipe: Recipe, weights: Mapping[str, float]) -> None:
    if recipe.transforms:
        raise RecipeError(f"mergekit has no counterpart of the transform '{recipe.transforms[0].method}' here.")
    if any(weight != 1.0 for weight in weights.values()):
        raise RecipeError("Weights of single experts are expressed with task_arithmetic only; leave them at 1 here.")


def _only_dare(recipe: Recipe) -> MethodCall | None:
    if not recipe.transforms:
        return None
    if len(recipe.transforms) > 1 or recipe.transforms[0].method != "dare":
        names = ", ".join(call.method for call in recipe.transforms)
        raise RecipeError(f"mergekit has no counterpart of the transforms {names}; dare alone has one.")
    return recipe.transforms[0]


def _models(document: Mapping[str, Any]) -> Models:
    """Return the models with their parameters; the base itself may be listed without any."""
    listed = document.get("models")
    if not isinstance(listed, list) or not listed:
        raise RecipeError("The mergekit configuration lists no models.")
    found = []
    for entry in listed:
        if not isinstance(entry, dict) or not isinstance(entry.get("model"), str):
            raise RecipeError("A model of the mergekit configuration has no `model`: a path or repository.")
        own = entry.get("parameters") or {}
        if set(entry) - {"model", "parameters"} or not isinstance(own, dict):
            raise RecipeError(f"The entry of {entry['model'][:80]} has keys other than model and parameters.")
        if entry["model"] != document.get("base_model") or own:
            found.append((entry["model"], own))
    return found


def _expert_of(model: str, experts: Mapping[str, tuple[str, ...]]) -> str:
    """Return the zoo's expert that a model path means: by its file, its name, or the end of its name."""
    path = PurePath(model)
    texts = {_letters(text) for text in (model, path.name, path.stem, path.parent.name) if text}
    for name, spellings in experts.items():
        if texts & {_letters(spelling) for spelling in (name, *spellings)}:
            return name
    whole = _letters(path.name)
    ends = [name for name, spellings in experts.items() if any(whole.endswith(_letters(s)) for s in (name, *spellings))]
    if ends:
        return max(ends, key=len)
    raise RecipeError(f"The zoo has no expert for the model '{model[:100]}'. It has {', '.join(experts)}.")


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _number(own: Mapping[str, Any], shared: Mapping[str, Any], name: str, default: float | None) -> float:
    value = own.get(name, shared.get(name, default))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        what = "is missing" if value is None else f"is {str(value)[:60]}"
        raise RecipeError(f"mergekit's `{name}` {what}; one number is supported, no gradients or filters.")
    return float(value)


def _check_keys(models: Models, shared: Mapping[str, Any], own: tuple[str, ...]) -> None:
    for place in (shared, *(parameters for _, parameters in models)):
        for key in place:
            if key not in (*own, *SWITCHES):
                raise RecipeError(f"mergekit's parameter `{str(key)[:40]}` is not supported with this method.")


def _switch(shared: Mapping[str, Any], name: str, default: bool) -> bool:
    value = shared.get(name, default)
    if not isinstance(value, bool):
        raise RecipeError(f"mergekit's `{name}` is {str(value)[:40]}; true or false is expected.")
    return value


def _chosen(names: list[str], weights: list[float]) -> list[dict[str, Any]]:
    return [{"name": name, "weight": weight} for name, weight in zip(names, weights, strict=True)]


def _read_linear(models: Models, names: list[str], shared: Mapping[str, Any]) -> dict[str, Any]:
    _check_keys(models, shared, ("weight",))
    weights = [_number(own, shared, "weight", None) for _, own in models]
    if not _switch(shared, "normalize", True) or len(set(weights)) > 1 or weights[0] <= 0:
        raise RecipeError("mergekit's linear is supported with equal positive weights and normalize: true.")
    return {"experts": _chosen(names, [1.0] * len(names)), "merge": {"method": "weight_average"}}


def _read_arithmetic(models: Models, names: list[str], shared: Mapping[str, Any]) -> dict[str, Any]:
    _check_keys(models, shared, ("weight",))
    scale, weights = _arithmetic(models, shared, False)
    return {"experts": _chosen(names, weights), "merge": {"method": "task_arithmetic", "params": {"scaling": scale}}}


def _read_dare_linear(models: Models, names: list[str], shared: Mapping[str, Any]) -> dict[str, Any]:
    _check_keys(models, shared, ("weight", "density"))
    densities = {_number(own, shared, "density", 1.0) for _, own in models}
    if len(densities) > 1:
        raise RecipeError("mergekit's density differs between models; one density for all is supported.")
    scale, weights = _arithmetic(models, shared, False)
    dare = {"drop_rate": 1 - densities.pop(), "rescale": _switch(shared, "rescale", True)}
    merge = {"method": "task_arithmetic", "params": {"scaling": scale}}
    return {
        "experts": _chosen(names, weights),
        "transforms": [{"method": "dare", "params": dare}],
        "merge": merge,
    }


def _arithmetic(models: Models, shared: Mapping[str, Any], normalize: bool) -> tuple[float, list[float]]:
    """Return λ and the weights of the experts; equal weights become λ."""
    weights = [_number(own, shared, "weight", None) for _, own in models]
    scale = _number({}, shared, "lambda", 1.0)
    if _switch(shared, "normalize", normalize):
        total = sum(weights)
        if abs(total) < 1e-8:
            raise RecipeError("mergekit's weights sum to 0 and normalize is true; there is nothing to divide by.")
        scale /= total
    if len(set(weights)) == 1:
        return scale * weights[0], [1.0] * len(weights)
    return scale, weights


def _read_ties(models: Models, names: list[str], shared: Mapping[str, Any]) -> dict[str, Any]:
    _check_keys(models, shared, ("weight", "density"))
    weights = [_number(own, shared, "weight", None) for _, own in models]
    densities = {_number(own, shared, "density", 1.0) for _, own in models}
    if len(densities) > 1 or len(set(weights)) > 1 or weights[0] <= 0:
        raise RecipeError("mergekit's ties is supported with one density and one positive weight for all models.")
    mean = _switch(shared, "normalize", True)
    scale = _number({}, shared, "lambda", 1.0) * (1.0 if mean else weights[0])
    params = {"density": densities.pop(), "merge": "mean" if mean else "sum", "scaling": scale, "scope": "tensor"}
    return {"experts": _chosen(names, [1.0] * len(names)), "merge": {"method": "ties", "params": params}}


_WRITERS: dict[str, Callable[[Recipe, Mapping[str, float]], dict[str, Any]]] = {
    "weight_average": _write_linear,
    "task_arithmetic": _write_arithmetic,
    "ties": _write_ties,
}
_READERS: dict[str, Callable[[Models, list[str], Mapping[str, Any]], dict[str, Any]]] = {
    "linear": _read_linear,
    "task_arithmetic": _read_arithmetic,
    "dare_linear": _read_dare_linear,
    "ties": _read_ties,
}
