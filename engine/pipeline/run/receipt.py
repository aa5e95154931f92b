"""The receipt of a merge: of what it was made, and for every tensor what came from whom.

The recipe and the digests of what went in stand in the header of a merged file, so that the merge can be done again.
The shares lie beside it as ``NAME.receipt.json``, and in a folder as ``receipt.json``. The same document is made from
the same files wherever it is asked for: by ``merge``, by ``export``, on the page of a run, and again by ``verify``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...analysis.shares import FATES, Shares, shares
from ...catalog import MERGE_METHODS, TRANSFORMS, adds_factors, looks_at_images, params_of, resolve_call, row_of
from ...merging.apply import transformed
from ...recipe import MethodCall, Recipe
from ...store.digests import FileSet, contents_digest
from ...types import Progress, Weights
from ...weights import LazyTaskVectors
from ...weights.align import Selected
from ...zoo.folder import Zoo
from .adapters import factors_of
from .weights_only import WeightsOnly

RECIPE, ORIGINS = "recipe", "origins"  # in the header
FORMAT = 1
DIGITS = 6  # significant digits of numbers in a receipt
Digest = Callable[[Path | FileSet], str]


@dataclass(frozen=True)
class Origin:
    """A file that the merged model was made of."""

    role: str  # base or expert; of methods that read more than weights also factors, data and heads
    name: str
    task: str
    sha256: str
    source: str
    licence: str


@dataclass(frozen=True)
class Made:
    """A merge, as a receipt describes it."""

    base: Weights
    experts: Mapping[str, Weights]  # in the order of the merge
    weights: Mapping[str, float]  # how much of each expert's task vector took part
    transforms: Sequence[MethodCall]
    merge: MethodCall
    seed: int
    origins: Sequence[Origin]


def origins_of(zoo: Zoo, recipe: Recipe, digest: Digest = contents_digest) -> list[Origin]:
    """Return what a recipe's merge takes of a zoo, with the digests of the files.

    Base and experts; for a method that adds factors also these; for one that looks at images also the images of the
    experts' tasks, and the zoo's own heads.
    """
    found = [Origin("base", zoo.manifest.backbone.architecture, "", digest(zoo.weights_path("base")), "", "")]
    for name, _ in zoo.choose(recipe):
        row = zoo.manifest.expert_table[name]
        found.append(Origin("expert", name, row.task, digest(zoo.weights_path(name)), row.source, row.licence))
    if adds_factors(recipe):
        for name, (sha256, seed) in factors_of(zoo, dict(zoo.choose(recipe)), digest).items():
            found.append(Origin("factors", name, f"start of seed {seed}", sha256, "", ""))
    if looks_at_images(recipe):
        for name in dict.fromkeys(origin.task for origin in found if origin.role == "expert"):
            task = zoo.manifest.task_table[name]
            if name in zoo.data:
                found.append(Origin("data", name, name, zoo.data[name].digest(digest), task.source, task.licence))
        if zoo.manifest.heads:
            found.append(Origin("heads", "heads", "", digest(zoo.path(zoo.manifest.heads)), "", ""))
    return found


def header_of(recipe: Recipe, origins: Sequence[Origin]) -> dict[str, str]:
    """Return what a merged file's header says of its making: the recipe, and the digests of what went in."""
    return {RECIPE: recipe.to_yaml(), ORIGINS: json.dumps([asdict(origin) for origin in origins])}


def beside(path: Path) -> Path:
    """Return the place of the receipt of a merged file."""
    return path.with_suffix(".receipt.json")


def made_by(zoo: Zoo, recipe: Recipe, origins: Sequence[Origin]) -> Made:
    """Return the merge that a resolved recipe asks for, with the zoo's weights opened."""
    chosen = dict(zoo.choose(recipe))
    experts = {name: zoo.weights(name) for name in chosen}
    return Made(zoo.weights("base"), experts, chosen, recipe.transforms, recipe.merge, recipe.seeds[0], origins)


def receipt_text(made: Made, merged: Weights | None, progress: Progress | None = None) -> str:
    """Return the receipt of a merge as text: one line a part, so that two of them can be compared by eye.

    Args:
        made: of what and how the merge was made.
        merged: its result; None where the weights depend on the task or the image.
        progress: told how far it is.

    Source: none. A share is defined in :class:`engine.analysis.shares.Shares`.
    """
    document = receipt_document(made, merged, progress)
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in document.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def receipt_document(made: Made, merged: Weights | None, progress: Progress | None = None) -> dict[str, Any]:
    """Return the receipt of a merge as JSON values; arguments as of :func:`receipt_text`.

    Lists of an expert have one number a layer, in the order of ``layers``; ``total`` has those of all layers together.
    Null stands for what cannot be told: shares of a layer that did not change, or of a merge without attribution.
    """
    merge = resolve_call(MERGE_METHODS, made.merge, "merge method")
    transforms = [resolve_call(TRANSFORMS, call, "transform") for call in made.transforms]
    document: dict[str, Any] = {
        "format": FORMAT,
        "merge": merge.model_dump(mode="json"),
        "transforms": [call.model_dump(mode="json") for call in transforms],
        "seed": made.seed,
        "weights": dict(made.weights),
        "inputs": [asdict(origin) for origin in made.origins],
        "ignored": _ignored(made),
    }
    if merged is None:
        return document | {"output": None, "attribution": "none", "reason": _reason(merge, None)}
    found = _shares(made, merged, progress)
    document |= {"output": tensors_digest(merged), "attribution": found.attribution, "reason": _reason(merge, found)}
    return document | _numbers(found, _names(made), tuple(made.experts))


def tensors_digest(weights: Weights) -> str:
    """Return the sha256 of all tensors: their names, dtypes, shapes and bytes, whatever file they lie in."""
    digest = hashlib.sha256()
    for name in sorted(weights.names):
        tensor = weights.tensor(name).contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _shares(made: Made, merged: Weights, progress: Progress | None) -> Shares:
    context = WeightsOnly(tuple(made.experts), made.seed)
    own = LazyTaskVectors(made.base, made.experts)
    weighted = LazyTaskVectors(made.base, made.experts, [made.weights[name] for name in made.experts])
    changed, context, _ = transformed(made.base, weighted, made.transforms, context)
    row = row_of(MERGE_METHODS, made.merge.method, "merge method")
    attribution = row.load_attribution()
    layer = attribution(changed, params_of(row, made.merge.params), context) if attribution else None
    rows = [row_of(TRANSFORMS, call.method, "transform") for call in made.transforms]

    def delta(name: str) -> Tensor:
        return merged.tensor(name).double().sub_(made.base.tensor(name).double())

    return shares(own, changed, delta, layer, any(row.stage == "merged_vector" for row in rows), progress)


def _names(made: Made) -> tuple[str, ...]:
    return tuple(name for name in made.base.names if made.base.dtype(name).is_floating_point)


def _reason(merge: MethodCall, found: Shares | None) -> str:
    """Return why there are no shares, or how they were found."""
    title = MERGE_METHODS[merge.method].title
    if found is None:
        return f"{title} makes weights for each task or image, so there is no one merged vector to take shares of."
    if found.attribution == "entries":
        return f"{title} says of every entry whose it is."
    if found.attribution == "layers":
        return f"{title} gives every expert one coefficient a layer; the coefficients were found in the result."
    return (
        f"{title} makes every entry of the merged vector from all experts at once, so none belongs to a single expert. "
        "Cosines with the experts' task vectors are given in place of shares."
    )


def _numbers(found: Shares, layers: Sequence[str], experts: Sequence[str]) -> dict[str, Any]:
    """Return the numbers of all layers, and of all together."""
    each = [slice(number, number + 1) for number in range(len(layers))]
    rows = [_row(found, experts, layer) for layer in each]
    return {
        "total": _row(found, experts, slice(None)),
        "layers": list(layers),
        "entries": found.entries.tolist(),
        "norm": [row["norm"] for row in rows],
        "rest": [row["rest"] for row in rows],
        "experts": {
            name: {kind: [row["experts"][name][kind] for row in rows] for kind in ("share", "cosine", *FATES)}
            for name in experts
        },
    }


def _row(found: Shares, experts: Sequence[str], layers: slice) -> dict[str, Any]:
    known = found.attribution != "none"
    share, cosine, fate = found.share(layers), found.cosine(layers), found.fate(layers)
    kinds = {
        name: {
            "share": _number(share[index]) if known else None,
            "cosine": _number(cosine[index]),
            **{kind: _number(value) for kind, value in zip(FATES, fate[index], strict=True)},
        }
        for index, name in enumerate(experts)
    }
    norm = _number(np.sqrt(found.merged[layers].sum()))
    return {"norm": norm, "rest": _number(1 - share.sum()) if known else None, "experts": kinds}


def _number(value: float) -> float | None:
    """Return a number of a few significant digits; None for NaN. Below 10⁻⁹ it is 0: what is left of rounding."""
    value = float(value)
    if math.isnan(value):
        return None
    return 0.0 if abs(value) < 1e-9 else float(f"{value:.{DIGITS}g}")


def _ignored(made: Made) -> list[dict[str, Any]]:
    """Return the tensors of the files that were not merged, with the reason; equal lists of several files as one."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for model, weights in (("base", made.base), *made.experts.items()):
        outside = _outside(weights)
        if outside:
            reason = "not of the image encoder" + ("" if model == "base" else "; the merge has the base's, if any")
            found.setdefault((reason, outside), []).append(model)
    whole = tuple(name for name in made.base.names if not made.base.dtype(name).is_floating_point)
    if whole:
        found["no floating-point numbers; the base's are kept", whole] = list(made.experts)
    return [{"models": models, "reason": reason, "tensors": list(names)} for (reason, names), models in found.items()]


def _outside(weights: Weights) -> tuple[str, ...]:
    if not isinstance(weights, Selected):
        return ()
    used: Iterable[str] = weights.stored.values()
    return tuple(sorted(set(weights.weights.names) - set(used)))
