"""mergekit's configurations as recipes, for what both can express.

Facts: mergekit 0.1.4's merge configuration, the defaults of its methods and its generalized task arithmetic. Its
``ties`` trims within each tensor and by default divides by the summed weights that agree, while the vision papers trim
over the whole model and sum, so the variant is always written out. Settings that differ between tensors become the
method ``by_layer``. Models that are files are read as ``mergekit-pytorch`` reads them, tensor by tensor under their
own names; others as ``mergekit-yaml`` reads Hugging Face's CLIP encoders, which have query, key and value apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...catalog import resolve
from ...errors import RecipeError
from ...recipe import Recipe, parse_recipe, read_yaml
from ...zoo.folder import Zoo
from .mergekit_listed import Listed, by_layer, listed_models
from .mergekit_settings import constant

OWN = "mergelens"
BLOCK = re.compile(r"\.(\d+)\.")
REFUSED = {
    "modules": "modules address parts of multimodal language models. Take it out",
    "tokenizer_source": "image encoders have no tokenizer. Take it out",
    "tokenizer": "image encoders have no tokenizer. Take it out",
    "chat_template": "image encoders have no chat template. Take it out",
}
NOT_HERE = {
    "nuslerp": "use slerp, which turns two experts",
    "arcee_fusion": "its threshold depends on chance in large tensors; use ties or breadcrumbs for sparse merges",
    "nearswap": "it has no published source; use task_arithmetic with two experts",
    "passthrough": "it copies one model; use that expert itself",
    "breadcrumbs_ties": "use breadcrumbs, or ties with scope: tensor",
}
AMONG_MODELS = ("linear", "karcher", "slerp")  # base_model is a model as others are
NO_GAMMA = (
    "mergekit 0.1.4's breadcrumbs keeps nothing of a tensor where `gamma` is 0. Set gamma to 0.01 or more, or use ties "
    "with scope: tensor, which drops small entries alone."
)
KNOWN = ("merge_method", "base_model", "models", "slices", "parameters", "dtype", "out_dtype", "name", OWN)


def read_mergekit(
    path: Path, zoo: str, experts: Mapping[str, tuple[str, ...]], blocks: Callable[[], int] = lambda: 0
) -> Recipe:
    """Read mergekit's YAML as a recipe on a zoo.

    Args:
        path: the YAML file.
        zoo: the zoo's name or path.
        experts: the zoo's experts → texts that a model path may name them by (task, file).
        blocks: says how many layers the zoo's models have, 0 where that is not known; asked where slices name layers.

    Raises:
        RecipeError: what cannot be expressed, by name; or a model that the zoo does not have.
    """
    return recipe_of(read_yaml(path, RecipeError, "mergekit configuration"), path, zoo, experts, blocks)


def recipe_of(
    document: Any,
    path: Path,
    zoo: str,
    experts: Mapping[str, tuple[str, ...]],
    blocks: Callable[[], int] = lambda: 0,
) -> Recipe:
    """Return the recipe that one configuration of a file stands for; see :func:`read_mergekit`."""
    if not isinstance(document, dict) or not isinstance(document.get("merge_method"), str):
        raise RecipeError(f"{path.name} is no mergekit configuration: it has no merge_method.")
    for key in document:
        if key in REFUSED:
            raise RecipeError(f"`{key}` is not supported: {REFUSED[key]}.")
        if key not in KNOWN:
            raise RecipeError(f"mergekit's key `{str(key)[:40]}` is not known here. Take it out.")
    method = document["merge_method"]
    if method not in READERS:
        instead = NOT_HERE.get(method, f"{', '.join(READERS)} have one")
        raise RecipeError(f"mergekit's method '{method[:40]}' has no counterpart here: {instead}.")
    listed = listed_models(document, experts, blocks)
    if listed.base is not None and method not in AMONG_MODELS:
        raise RecipeError(
            f"mergekit's {method} starts from base_model, which is the expert {listed.base} here; a recipe's task "
            "vectors start from the zoo's base. Name that."
        )
    recipe = READERS[method](listed)
    listed.refuse_others()
    own = document.get(OWN) if isinstance(document.get(OWN), dict) else {}
    kept = {key: own[key] for key in ("calibrators", "probe", "seeds", "forward") if key in own}
    return resolve(parse_recipe({"zoo": zoo, **kept, **recipe}, origin=f"configuration {path.name}"))


def remarks(recipe: Recipe) -> list[str]:
    """Return what a person should know of a recipe that mergekit and MergeLens do not merge to the same numbers."""
    dare = next((call for call in resolve(recipe).transforms if call.method == "dare"), None)
    if dare is None:
        return []
    said = "mergekit's DARE drops other entries: both drop at random."
    if dare.params["rescale"]:
        said += " It scales what is left of a tensor to the L1 norm from before; here it is divided by the share kept."
    return [said]


def is_mergekit(document: Any) -> bool:
    """Tell whether a parsed YAML document is a mergekit configuration."""
    return isinstance(document, dict) and "merge_method" in document


def count_blocks(zoo: Zoo) -> int:
    """Return how many blocks the encoder of a zoo has, by the names of its base's tensors."""
    found = (BLOCK.search(name) for name in zoo.weights("base").names)
    return len({block[1] for block in found if block})


def expert_spellings(zoo: str) -> dict[str, tuple[str, ...]]:
    """Return a zoo's experts with what a path may call them: their task, their file, where they came from."""
    opened = Zoo.open(zoo)
    found = {}
    for expert in opened.manifest.experts:
        own = (expert.task, expert.weights, str(opened.folder / expert.weights))
        found[expert.name] = tuple(text for text in own if text)
    return found


def _linear(listed: Listed) -> dict[str, Any]:
    if not listed.switch("normalize", True):
        raise RecipeError("mergekit's linear with normalize: false scales the base too; set normalize: true.")
    weights = listed.weights()
    values = [constant(clauses) for clauses in weights]
    total = _base_weight(listed, None in values)
    if listed.base_own is None and len(set(values)) == 1 and values[0] is not None and values[0] > 0:
        return {"experts": listed.chosen(), "merge": {"method": "weight_average"}}
    total += sum(value or 0 for value in values)
    if None in values:
        return by_layer(listed, "task_arithmetic", {"scaling": 1.0}, {}, weights, normalise=True)
    if abs(total) < 1e-8:
        raise RecipeError("mergekit's weights sum to 0 and normalize is true; there is nothing to divide by.")
    shares = [value / total for value in values if value is not None]
    return {
        "experts": listed.chosen(shares),
        "merge": {"method": "task_arithmetic", "params": {"scaling": 1.0}},
    }


def _base_weight(listed: Listed, by_layer: bool) -> float:
    """Return the weight of the base where mergekit's linear averages it with the models, else 0."""
    if listed.base_own is None:
        return 0.0
    added_to_files = listed.naming == "open_clip" and not listed.base_listed  # mergekit-pytorch fails
    if added_to_files or ("weight" not in listed.base_own and "weight" not in listed.shared):
        raise RecipeError(
            "mergekit's linear averages base_model with the models, and it has no weight here. List it among the "
            "models with a weight, or take base_model out."
        )
    weight = constant(listed.weight(listed.base_own))
    if weight is None or by_layer:
        raise RecipeError("The base's weight in mergekit's linear is supported with one number for every model.")
    return weight


def _arithmetic(listed: Listed) -> dict[str, Any]:
    """Return λ and weights of experts; equal weights become λ."""
    normalise = listed.switch("normalize", False)
    listed.used.add("density")  # mergekit reads it here too, and drops nothing
    weights, scaling = listed.weights(), listed.general("lambda", 1.0)
    values, scale = [constant(clauses) for clauses in weights], constant(scaling)
    if None in values or scale is None:
        return by_layer(listed, "task_arithmetic", {}, {"scaling": scaling}, weights, normalise)
    known = [value for value in values if value is not None]
    if normalise:
        if abs(sum(known)) < 1e-8:
            raise RecipeError("mergekit's weights sum to 0 and normalize is true; there is nothing to divide by.")
        scale /= sum(known)
    if len(set(known)) == 1:
        scale, known = scale * known[0], [1.0] * len(known)
    return {
        "experts": listed.chosen(known),
        "merge": {"method": "task_arithmetic", "params": {"scaling": scale}},
    }


def _dare(listed: Listed, merge: Callable[[Listed], dict[str, Any]]) -> dict[str, Any]:
    density = constant(listed.common("density", 1.0))
    if density is None:
        raise RecipeError("mergekit's `density` of DARE is a gradient or filter; one number is supported.")
    dare = {"drop_rate": 1 - density, "rescale": listed.switch("rescale", True)}
    return {**merge(listed), "transforms": [{"method": "dare", "params": dare}]}


def _dare_linear(listed: Listed) -> dict[str, Any]:
    return _dare(listed, _arithmetic)


def _dare_ties(listed: Listed) -> dict[str, Any]:
    return _dare(listed, lambda some: _elected(some, {"values": [1.0]}, False))


def _unscaled(listed: Listed, default: bool) -> None:
    """Refuse a rescaling that no method here has."""
    if listed.switch("rescale", default):
        raise RecipeError(
            "mergekit's `rescale` is true: it scales every trimmed tensor back to its L1 norm, which no method does "
            "here. Set rescale: false, which means the same in both."
        )


def _ties(listed: Listed) -> dict[str, Any]:
    _unscaled(listed, False)
    return _elected(listed, None, True)


def _elected(listed: Listed, density: dict[str, Any] | None, normalise: bool) -> dict[str, Any]:
    mean = listed.switch("normalize", normalise)
    weights, scaling = listed.weights(), listed.general("lambda", 1.0)
    densities = [density] if density else listed.common("density", 1.0)
    params = {"merge": "mean" if mean else "sum", "scope": "tensor"}
    same = all(other == weights[0] for other in weights)
    if mean and not same:
        raise RecipeError(
            "mergekit's ties with normalize: true is supported with the same weights for all models; set normalize: "
            "false, or one weight."
        )
    value, scale, dense = constant(weights[0]) if same else None, constant(scaling), constant(densities)
    if mean and value is not None and value <= 0:
        raise RecipeError("mergekit's ties is supported with a positive weight.")
    plain = (
        listed.naming == "open_clip"
        and dense is not None
        and scale is not None
        and (mean or (value is not None and value > 0))
    )
    if plain and scale is not None:
        params |= {"density": dense, "scaling": scale * (1.0 if mean or value is None else value)}
        return {"experts": listed.chosen(), "merge": {"method": "ties", "params": params}}
    settings = {"density": densities, "scaling": scaling}
    return by_layer(listed, "ties", params, settings, () if mean else weights)


def _breadcrumbs(listed: Listed) -> dict[str, Any]:
    _unscaled(listed, False)
    settings = {"beta": listed.common("density", 1.0), "gamma": listed.common("gamma", 0.01)}
    if any(0 in clause["values"] for clause in settings["gamma"]):
        raise RecipeError(NO_GAMMA)
    normalise = listed.switch("normalize", False)
    settings["scaling"] = listed.general("lambda", 1.0)
    return by_layer(listed, "breadcrumbs", {"scope": "tensor"}, settings, listed.weights(), normalise)


def _della(listed: Listed, elect: bool) -> dict[str, Any]:
    _unscaled(listed, True)
    weights, mean = listed.weights(), listed.switch("normalize", elect)
    if elect and (not mean or any(other != weights[0] for other in weights)):
        raise RecipeError("mergekit's della is supported with normalize: true and the same weights for all models.")
    settings = {"density": listed.common("density", 1.0), "epsilon": listed.common("epsilon", 0.15)}
    settings["scaling"] = listed.general("lambda", 1.0)
    params = {"rescale": False, "elect": elect}
    return by_layer(listed, "della", params, settings, () if elect else weights, not elect and mean)


def _slerp(listed: Listed) -> dict[str, Any]:
    t = listed.general("t", None)
    if len(listed.names) != 2 or listed.base not in listed.names:
        raise RecipeError(
            "mergekit's slerp is supported between two experts of the zoo, the first of which is base_model; between "
            "the base and an expert, use task_arithmetic with one expert."
        )
    if listed.names[0] != listed.base:
        listed.names.reverse()
    return by_layer(listed, "slerp", {"on": "weights"}, {"t": t})


def _model_stock(listed: Listed) -> dict[str, Any]:
    if listed.switch("filter_wise", False):
        raise RecipeError(
            "mergekit's filter_wise takes rows of the last dimension, of the patch embedding too; MergeLens takes "
            "whole filters. Set filter_wise: false."
        )
    return by_layer(listed, "model_stock", {"average": "cosines", "scope": "tensor", "clamp": False}, {})


def _karcher(listed: Listed) -> dict[str, Any]:
    if listed.base_own is not None:
        raise RecipeError(
            "mergekit's karcher averages base_model with the models; here it is the mean of experts. Take base_model "
            "out, and the base from among the models."
        )
    most, tolerance = constant(listed.general("max_iter", 10)), constant(listed.general("tol", 1e-5))
    if most is None or tolerance is None:
        raise RecipeError("mergekit's karcher is supported with one `max_iter` and one `tol`.")
    return by_layer(listed, "karcher", {"on": "weights", "max_iterations": int(most), "tolerance": tolerance}, {})


def _sce(listed: Listed) -> dict[str, Any]:
    return by_layer(listed, "sce", {"unselected": "drop"}, {"select": listed.general("select_topk", 1.0)})


def _multislerp(listed: Listed) -> dict[str, Any]:
    weights = [constant(clauses) for clauses in listed.weights()]
    if not listed.switch("normalize_weights", True):
        raise RecipeError("mergekit's multislerp is supported with weights that sum to 1; set normalize_weights: true.")
    if None in weights or len(set(weights)) != 1:
        raise RecipeError("mergekit's multislerp is supported with the same weight for all models.")
    return by_layer(listed, "multislerp", {"on": "task_vectors" if listed.based else "weights"}, {})


READERS: dict[str, Callable[[Listed], dict[str, Any]]] = {
    "linear": _linear,
    "task_arithmetic": _arithmetic,
    "dare_linear": _dare_linear,
    "dare_ties": _dare_ties,
    "ties": _ties,
    "breadcrumbs": _breadcrumbs,
    "della": lambda listed: _della(listed, elect=True),
    "della_linear": lambda listed: _della(listed, elect=False),
    "slerp": _slerp,
    "model_stock": _model_stock,
    "karcher": _karcher,
    "sce": _sce,
    "multislerp": _multislerp,
}
