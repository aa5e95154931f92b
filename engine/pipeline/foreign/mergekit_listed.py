"""The models and parameters that a mergekit configuration lists, and merges whose settings differ between tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from ...errors import RecipeError
from .mergekit_settings import Clauses, constant, effective

FILES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
IGNORED = ("int8_mask", "normalize_weights", "eps")  # change memory, or nothing where weights are equal
ELEMENTWISE = ("task_arithmetic",)  # the same whether query, key and value are apart or not


@dataclass
class Listed:
    """The models of a configuration, and the general parameters."""

    names: list[str]  # of the zoo's experts
    own: list[Mapping[str, Any]]  # parameters of each
    shared: Mapping[str, Any]
    naming: str
    based: bool  # a base_model is named
    base: str | None  # the expert that ``base_model`` names, where it is one
    base_own: Mapping[str, Any] | None  # parameters of the base where it is listed with some
    used: set[str] = field(default_factory=set)

    def weights(self) -> list[Clauses]:
        """Return the clauses of every expert's weight."""
        self.used.add("weight")
        return [effective("weight", own, self.shared, None) for own in self.own]

    def common(self, name: str, default: float | None) -> Clauses:
        """Return the clauses of a parameter that all models share.

        Raises:
            RecipeError: it differs between models.
        """
        self.used.add(name)
        found = [effective(name, own, self.shared, default) for own in self.own]
        if any(other != found[0] for other in found):
            raise RecipeError(f"mergekit's `{name}` differs between models; the same for all models is supported.")
        return found[0]

    def general(self, name: str, default: float | None) -> Clauses:
        """Return the clauses of a parameter that only stands among the general ones."""
        self.used.add(name)
        return effective(name, {}, self.shared, default)

    def switch(self, name: str, default: bool) -> bool:
        """Return a general switch."""
        self.used.add(name)
        value = self.shared.get(name, default)
        if not isinstance(value, bool):
            raise RecipeError(f"mergekit's `{name}` is {str(value)[:40]}; true or false is expected.")
        return value

    def refuse_others(self) -> None:
        """Refuse parameters that nothing has asked for."""
        for place in (self.shared, *self.own):
            for key in place:
                if key not in self.used and key not in IGNORED:
                    raise RecipeError(f"mergekit's parameter `{str(key)[:40]}` is not supported with this method.")

    def chosen(self, weights: Sequence[float] | None = None) -> list[dict[str, Any]]:
        """Return the experts with weights, 1 by default."""
        values = [1.0] * len(self.names) if weights is None else weights
        return [{"name": name, "weight": weight} for name, weight in zip(self.names, values, strict=True)]


def listed_models(document: Mapping[str, Any], experts: Mapping[str, tuple[str, ...]]) -> Listed:
    """Read the models of a configuration.

    Args:
        document: the parsed configuration.
        experts: the zoo's experts → texts that a model path may name them by.

    Raises:
        RecipeError: what cannot be read, or a model that the zoo does not have.
    """
    shared = document.get("parameters") or {}
    entries = document.get("models")
    if "slices" in document:
        entries, more = _one_slice(document["slices"])
        shared = {**shared, **more} if isinstance(shared, dict) else shared
    if not isinstance(shared, dict):
        raise RecipeError("mergekit's `parameters` is no table.")
    if not isinstance(entries, list) or not entries:
        raise RecipeError("The mergekit configuration lists no models.")
    base, models, base_own = document.get("base_model"), [], None
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("model"), str):
            raise RecipeError("A model of the mergekit configuration has no `model`: a path or repository.")
        own = entry.get("parameters") or {}
        if set(entry) - {"model", "parameters"} or not isinstance(own, dict):
            raise RecipeError(f"The entry of {entry['model'][:80]} has keys other than model and parameters.")
        if entry["model"] != base or _find(entry["model"], experts):
            models.append((entry["model"], own))
        else:
            base_own = own or None
    in_files = any(PurePath(model).suffix in FILES for model, _ in models)
    return Listed(
        [_expert_of(model, experts) for model, _ in models],
        [own for _, own in models],
        shared,
        "open_clip" if in_files else "huggingface",
        base is not None,
        _find(str(base), experts) if base else None,
        base_own,
    )


def _one_slice(slices: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the sources of the one slice that covers all layers, as models, and its parameters."""
    if not isinstance(slices, list) or len(slices) != 1 or not isinstance(slices[0], dict):
        raise RecipeError(
            "`slices` assemble layers of several models; one slice over all layers is supported. Use a gradient: "
            "a list of values for `weight` or `t`."
        )
    sources = slices[0].get("sources")
    ranges = [source.get("layer_range") for source in sources if isinstance(source, dict)] if sources else []
    first = ranges[0] if ranges else None
    if not isinstance(first, list) or len(first) != 2 or first[0] != 0 or any(other != first for other in ranges):
        raise RecipeError("The slice's `layer_range` is not [0, all layers] for every source, so layers would move.")
    entries = [{key: value for key, value in source.items() if key != "layer_range"} for source in sources]
    return entries, slices[0].get("parameters") or {}


def _find(model: str, experts: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return the zoo's expert that a model path means: by its file, its name, or the end of its name."""
    path = PurePath(model)
    texts = {_letters(text) for text in (model, path.name, path.stem, path.parent.name) if text}
    for name, spellings in experts.items():
        if texts & {_letters(spelling) for spelling in (name, *spellings)}:
            return name
    whole = _letters(path.name)
    ends = [name for name, spellings in experts.items() if any(whole.endswith(_letters(s)) for s in (name, *spellings))]
    return max(ends, key=len) if ends else None


def _expert_of(model: str, experts: Mapping[str, tuple[str, ...]]) -> str:
    found = _find(model, experts)
    if found is None:
        raise RecipeError(f"The zoo has no expert for the model '{model[:100]}'. It has {', '.join(experts)}.")
    return found


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def by_layer(
    listed: Listed,
    method: str,
    params: Mapping[str, Any],
    settings: Mapping[str, Clauses],
    weights: Sequence[Clauses] = (),
    normalise: bool = False,
) -> dict[str, Any]:
    """Return a merge by layer, or the method itself where everything is the same in all tensors.

    Raises:
        RecipeError: a gradient, where mergekit-pytorch would merge files.
    """
    rows, plain = [], dict(params)
    for name, clauses in settings.items():
        if (value := constant(clauses)) is not None:
            plain[name] = value
        else:
            rows.append({"parameter": name, "clauses": clauses})
    if any(constant(clauses) != 1 for clauses in weights):
        for name, clauses in zip(listed.names, weights, strict=True):
            rows.append({"parameter": "weight", "expert": name, "clauses": clauses})
    for row in rows:
        if listed.naming == "open_clip" and any(len(set(clause["values"])) > 1 for clause in row["clauses"]):
            raise RecipeError(
                f"`{row['parameter']}` is a gradient, and mergekit-pytorch, which merges files, knows no layers: it "
                "takes the first value. Write filters such as resblocks.0. with a value each."
            )
    if not rows and not normalise and (listed.naming == "open_clip" or method in ELEMENTWISE):
        return {"experts": listed.chosen(), "merge": {"method": method, "params": plain}}
    own = {"method": method, "params": plain, "settings": rows, "naming": listed.naming, "normalise": normalise}
    return {"experts": listed.chosen(), "merge": {"method": "by_layer", "params": own}}
