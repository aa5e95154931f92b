"""FusionBench's method files in and out: names and parameters of its algorithms beside ours.

Facts: the class names, their parameters and defaults in ``fusion_bench_config/method`` of FusionBench 0.2.33 (Tang et
al., arXiv:2406.03280). What has no counterpart is refused by name. What only MergeLens knows, such as calibrators and
seeds, has no place in a method file; ``convert`` says what was left out. FusionBench merges tensors as Hugging Face
has them: methods that treat a tensor as a whole are ``by_layer`` with its names here, and the projection, which its
encoders lack, does not count in the density of TIES.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ...catalog import MERGE_METHODS, params_of, resolve
from ...catalog.by_layer import ByLayerParams
from ...errors import RecipeError, nearest
from ...recipe import MethodCall, Recipe, parse_recipe, read_yaml
from ...zoo.folder import Zoo
from .fusionbench_table import COUNTERPARTS, DARE, OTHERWISE, RUNNING, Counterpart, Renamed

PACKAGE = "fusion_bench.method."
PROJECTION = "visual.proj"
FROZEN = "frozen_parameters"  # of TIES
WEIGHTED, INTERPOLATED = "WeightedAverageAlgorithm", "LinearInterpolationAlgorithm"


def is_fusionbench_method(document: Any) -> bool:
    """Tell whether a parsed YAML document is a method of FusionBench."""
    if not isinstance(document, dict):
        return False
    target, name = document.get("_target_"), document.get("name")
    return (isinstance(target, str) and target.startswith(PACKAGE)) or (
        isinstance(name, str) and name in _by_their_name()
    )


def read_method(path: Path, zoo: str, experts: Sequence[str], projection: Callable[[], int] = lambda: 0) -> Recipe:
    """Read a method file as a recipe on a zoo.

    Args:
        path: the YAML file.
        zoo: the zoo's name or path.
        experts: its experts in their order, which weights in a file refer to.
        projection: says how many entries the zoo's projection has, which FusionBench's encoders lack; asked by TIES.

    Raises:
        RecipeError: a method without a counterpart, or a parameter that ours does not have, by name.
    """
    document = read_yaml(path, RecipeError, "FusionBench method")
    if not isinstance(document, dict):
        raise RecipeError(f"{path.name} is no FusionBench method: it is a {type(document).__name__}.")
    theirs = _their_name(document, path)
    if theirs in (WEIGHTED, INTERPOLATED):
        recipe = _weighted(document, theirs, experts)
    else:
        recipe = _plain(document, _counterpart(theirs), projection)
    return resolve(parse_recipe({"zoo": zoo, **recipe}, origin=f"FusionBench method {path.name}"))


def projection_size(zoo: Zoo) -> int:
    """Return how many entries the projection of a zoo's base has."""
    weights = zoo.weights("base")
    return math.prod(weights.shape(PROJECTION)) if PROJECTION in weights.names else 0


def write_method(recipe: Recipe) -> str:
    """Return a recipe's merge as a method file.

    Raises:
        RecipeError: the merge, a transform or a parameter has no counterpart, with the reason.
    """
    recipe = resolve(recipe)
    dare = _only_dare(recipe.transforms)
    if recipe.experts != "all" and any(expert.weight != 1 for expert in recipe.experts):
        return _write_weighted(recipe)
    ours, params, apart = _inner(recipe.merge)
    reasons = []
    for row in COUNTERPARTS:
        if row.ours != ours or row.dare != (dare is not None):
            continue
        if row.apart != apart:
            raise RecipeError(_apart_reason(row))
        known = {item.ours for item in row.renamed.values()}
        meant = _meant(row)
        wrong = {name: value for name, value in params.items() if name not in known and value != meant.get(name)}
        if wrong.get(FROZEN, 0) < 0:
            del wrong[FROZEN]
        if not wrong:
            return _dump(_written(row, params, dare))
        reasons.append(", ".join(f"{name}: {value}" for name, value in wrong.items()))
    if reasons:
        meant = " or ".join(_meant_text(row) for row in COUNTERPARTS if row.ours == ours)
        raise RecipeError(
            f"FusionBench has no setting for {' or '.join(reasons)} of {ours}; it computes {meant}. Set the recipe so."
        )
    for theirs, reason in OTHERWISE.values():
        if theirs == ours:
            raise RecipeError(f"FusionBench 0.2.33 computes '{ours}' otherwise: {reason}.")
    raise RecipeError(
        f"FusionBench 0.2.33 has no counterpart of '{ours}'{' after dare' if dare else ''}; "
        f"{', '.join(dict.fromkeys(row.ours for row in COUNTERPARTS))} have one."
    )


def remarks(recipe: Recipe) -> list[str]:
    """Return what a person should know of a recipe's method file: what it has no place for, and what it needs."""
    recipe = resolve(recipe)
    ours, params, _ = _inner(recipe.merge)
    parts = {"calibrators": recipe.calibrators, "forward": recipe.forward != "standard", "seeds": recipe.seeds != (0,)}
    parts["the choice of experts (a model pool has it)"] = recipe.experts != "all"
    lost = [name for name, used in parts.items() if used]
    said = [f"Not in a method file: {', '.join(lost)}."] if lost else []
    if ours == "slerp":
        said.append("FusionBench's SLERP takes a pool of the two experts alone, without _pretrained_.")
    if ours == "ties" and not params[FROZEN]:
        said.append(
            "FusionBench's encoders have no projection, whose entries count in the density here; with -N as "
            "frozen_parameters, where N is how many it has, both keep the same."
        )
    if recipe.transforms:
        said.append("FusionBench's DARE drops other entries: both drop at random.")
    return said


def _inner(call: MethodCall) -> tuple[str, dict[str, Any], bool]:
    """Return the method that merges, its parameters, and whether query, key and value are apart."""
    params = dict(call.params)
    if call.method != "by_layer" or params["naming"] != "huggingface":
        return call.method, params, False
    if params["settings"] or params["normalise"]:
        raise RecipeError("FusionBench has no settings by layer; take `settings` and `normalise` out.")
    inner = ByLayerParams.model_validate(params)
    return inner.method, inner.inner({}).model_dump(mode="json"), True


def _apart_reason(row: Counterpart) -> str:
    if not row.apart:
        return f"FusionBench's {row.theirs} works on the whole model; use {row.ours} without by_layer."
    return (
        f"FusionBench's {row.theirs} takes query, key and value of attention as three tensors, {row.ours} here as one, "
        f"so that results differ. merge: {{method: by_layer, params: {{method: {row.ours}, naming: huggingface}}}} "
        "computes what FusionBench computes; write that."
    )


def _meant(row: Counterpart) -> dict[str, Any]:
    """Return the values that parameters without a counterpart must have: those that theirs always means."""
    renamed = {item.ours for item in row.renamed.values()}
    ours = params_of(MERGE_METHODS[row.ours], dict(row.fixed)).model_dump(mode="json")
    return {name: value for name, value in ours.items() if name not in renamed}


def _meant_text(row: Counterpart) -> str:
    return ", ".join(f"{name}: {value}" for name, value in _meant(row).items())


def _written(row: Counterpart, params: Mapping[str, Any], dare: MethodCall | None) -> dict[str, Any]:
    document: dict[str, Any] = {"name": row.theirs} if row.named else {"_target_": PACKAGE + row.theirs}
    if dare is not None:
        document |= {"sparsity_ratio": dare.params["drop_rate"], "rescale": dare.params["rescale"]}
    for theirs, item in row.renamed.items():
        value = params[item.ours]
        percent = value if item.factor == 1 else round(value / item.factor, 10)
        document[theirs] = value if item.factor != 1 and percent <= 1 else percent  # up to 1 is a share there
    return document | {name: value for name, value in row.only.items()}


def _write_weighted(recipe: Recipe) -> str:
    scaling = recipe.merge.params.get("scaling", 1.0)
    weights = [expert.weight * scaling for expert in recipe.experts]
    if recipe.merge.method != "task_arithmetic" or recipe.transforms or abs(sum(weights) - 1) > 1e-6:
        raise RecipeError(
            "FusionBench weights models, not task vectors: weights of experts are expressed for task_arithmetic where "
            f"weight × scaling sums to 1 (here {sum(weights):g}), without transforms."
        )
    return _dump({"_target_": PACKAGE + WEIGHTED, "normalize": False, "weights": weights})


def _only_dare(transforms: Sequence[MethodCall]) -> MethodCall | None:
    if not transforms:
        return None
    if len(transforms) > 1 or transforms[0].method != "dare":
        names = ", ".join(call.method for call in transforms)
        raise RecipeError(f"FusionBench has no counterpart of the transforms {names}; dare alone has one.")
    return transforms[0]


def _their_name(document: Mapping[str, Any], path: Path) -> str:
    target, name = document.get("_target_"), document.get("name")
    if isinstance(target, str):
        return target.removeprefix(PACKAGE)
    if isinstance(name, str):
        return name
    raise RecipeError(f"{path.name} is no FusionBench method: it has neither `_target_` nor `name`.")


def _by_their_name() -> dict[str, Counterpart]:
    return {row.theirs: row for row in COUNTERPARTS}


def _counterpart(theirs: str) -> Counterpart:
    table = _by_their_name()
    last = {name.rpartition(".")[2]: row for name, row in table.items()}  # classes are re-exported further up
    row = table.get(theirs) or last.get(theirs.rpartition(".")[2])
    for name, (ours, reason) in OTHERWISE.items():
        if name.rpartition(".")[2] == theirs.rpartition(".")[2]:
            raise RecipeError(f"FusionBench 0.2.33 computes {name} otherwise: {reason}. Use {ours}, knowing that.")
    if row is None:
        raise RecipeError(
            f"FusionBench's method '{theirs[:80]}' has no counterpart here. {nearest(theirs, [*last, WEIGHTED])}"
        )
    return row


def _plain(document: Mapping[str, Any], row: Counterpart, projection: Callable[[], int]) -> dict[str, Any]:
    given = {key: value for key, value in document.items() if key not in ("_target_", "name", "_recursive_")}
    params: dict[str, Any] = dict(row.fixed)
    for theirs, item in row.renamed.items():
        value = given.pop(theirs, item.default)
        if value is not None:
            params[item.ours] = _converted(row, theirs, value, item)
    transforms = []
    if row.dare:
        dare = {key: given.pop(key, default) for key, default in DARE.items()}
        transforms = [{"method": "dare", "params": {"drop_rate": dare["sparsity_ratio"], "rescale": dare["rescale"]}}]
    for key, value in given.items():
        if key in row.only and _number(value) != row.only[key]:
            raise RecipeError(
                f"{row.theirs}'s `{key}` is {str(value)[:60]}; {row.only[key]} is what MergeLens computes. Set it so."
            )
        if key not in row.only and key not in RUNNING and key != "ignore_keys":
            raise RecipeError(f"{row.theirs}'s parameter `{str(key)[:40]}` has no counterpart here. Take it out.")
    if row.ours == "ties":
        params[FROZEN] = -projection()
    if row.apart:
        params = {"method": row.ours, "params": params, "naming": "huggingface"}
    return {"transforms": transforms, "merge": {"method": "by_layer" if row.apart else row.ours, "params": params}}


def _converted(row: Counterpart, theirs: str, value: Any, item: Renamed) -> Any:
    value = _number(value)
    if item.factor == 1:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RecipeError(f"{row.theirs}'s `{theirs}` is {str(value)[:60]}; a number is needed.")
    # Percent; numbers of at most 1 are read as shares, as FusionBench does.
    return value if value <= 1 else round(value * item.factor, 12)


def _number(value: Any) -> Any:
    """Return a number that YAML 1.1 reads as text, such as 1e-3; everything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def _weighted(document: Mapping[str, Any], theirs: str, experts: Sequence[str]) -> dict[str, Any]:
    """Return task arithmetic with weights that sum to 1, which is what a weighted average of models is."""
    if theirs == INTERPOLATED:
        t = document.get("t", 0.5)
        weights: Any = [1 - t, t] if isinstance(t, int | float) else None
    else:
        weights = document.get("weights")
    numbers = isinstance(weights, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in weights
    )
    if not numbers or len(weights) != len(experts):
        raise RecipeError(f"{theirs} needs one number for each of {', '.join(experts)}; it has {str(weights)[:100]}.")
    total = sum(weights)
    if document.get("normalize", True) and theirs == WEIGHTED and total:
        weights = [weight / total for weight in weights]
    if abs(sum(weights) - 1) > 1e-6:
        raise RecipeError(
            f"{theirs}'s weights sum to {sum(weights):g}, which scales the base's weights too; no merge here does "
            "that. Set normalize: true, or weights that sum to 1."
        )
    chosen = [{"name": name, "weight": weight} for name, weight in zip(experts, weights, strict=True)]
    return {"experts": chosen, "merge": {"method": "task_arithmetic", "params": {"scaling": 1.0}}}


def _dump(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True)
