"""The models and parameters that a mergekit configuration lists, and merges whose settings differ between tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from ...catalog.datasets import find_dataset
from ...errors import RecipeError
from .mergekit_settings import Clauses, constant, effective

FILES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
IGNORED = ("int8_mask", "eps")  # change memory, or next to nothing
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
    base_own: Mapping[str, Any] | None  # parameters of a base that is no expert, where mergekit takes it as a model
    base_listed: bool  # it stands among the models
    used: set[str] = field(default_factory=set)

    def weights(self) -> list[Clauses]:
        """Return the clauses of every expert's weight."""
        self.used.add("weight")
        return [self.weight(own) for own in self.own]

    def weight(self, own: Mapping[str, Any]) -> Clauses:
        """Return the clauses of the weight of a model with parameters of its own."""
        return effective("weight", own, self.shared, None, in_files=self.naming == "open_clip")

    def common(self, name: str, default: float | None) -> Clauses:
        """Return the clauses of a parameter that all models share.

        Raises:
            RecipeError: it differs between models.
        """
        self.used.add(name)
        in_files = self.naming == "open_clip"
        found = [effective(name, own, self.shared, default, in_files=in_files) for own in self.own]
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


def listed_models(
    document: Mapping[str, Any], experts: Mapping[str, tuple[str, ...]], blocks: Callable[[], int] = lambda: 0
) -> Listed:
    """Read the models of a configuration.

    Args:
        document: the parsed configuration.
        experts: the zoo's experts → texts that a model path may name them by.
        blocks: says how many layers the zoo's models have, 0 where that is not known; asked where slices name layers.

    Raises:
        RecipeError: what cannot be read, or a model that the zoo does not have.
    """
    shared, base = document.get("parameters") or {}, document.get("base_model")
    entries = document.get("models")
    if "slices" in document:
        entries, more = _one_slice(document["slices"], blocks)
        shared = {**shared, **more} if isinstance(shared, dict) else shared
    if not isinstance(shared, dict):
        raise RecipeError("mergekit's `parameters` is no table.")
    if not isinstance(base, str | None):
        raise RecipeError(f"mergekit's `base_model` is {str(base)[:60]}; a path or repository is expected.")
    found = _entries(entries)
    expert, listed = _find(base, experts) if base else None, any(model == base for model, _ in found)
    if base and not listed and "slices" not in document:
        found.append((base, {}))  # as mergekit does
    models = [(model, own) for model, own in found if model != base or expert]
    if not models:
        raise RecipeError("The mergekit configuration lists no models besides its base.")
    return Listed(
        [_expert_of(model, experts) for model, _ in models],
        [own for _, own in models],
        shared,
        "open_clip" if any(PurePath(model).suffix in FILES for model, _ in models) else "huggingface",
        base is not None,
        expert,
        next((own for model, own in found if model == base and not expert), None),
        listed,
    )


def _entries(entries: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return models with their parameters as they are listed."""
    if not isinstance(entries, list) or not entries:
        raise RecipeError("The mergekit configuration lists no models.")
    found = []
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("model"), str):
            raise RecipeError("A model of the mergekit configuration has no `model`: a path or repository.")
        own = entry.get("parameters") or {}
        if set(entry) - {"model", "parameters"} or not isinstance(own, dict):
            raise RecipeError(f"The entry of {entry['model'][:80]} has keys other than model and parameters.")
        found.append((entry["model"], own))
    return found


def _one_slice(slices: Any, blocks: Callable[[], int]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the sources of the one slice that covers all layers, as models, and its parameters."""
    if not isinstance(slices, list) or len(slices) != 1 or not isinstance(slices[0], dict):
        raise RecipeError(
            "`slices` assemble layers of several models; one slice over all layers is supported. Use a gradient: "
            "a list of values for `weight` or `t`."
        )
    sources, own = slices[0].get("sources"), slices[0].get("parameters") or {}
    tables = isinstance(sources, list) and sources and all(isinstance(source, dict) for source in sources)
    if not tables or not isinstance(own, dict) or set(slices[0]) - {"sources", "parameters"}:
        raise RecipeError(
            "The slice needs `sources`, a list of models with their layer_range, and may have parameters."
        )
    first, layers = sources[0].get("layer_range"), blocks()
    if not isinstance(first, list) or len(first) != 2 or first[0] != 0:
        raise RecipeError("The slice's `layer_range` is not [0, all layers] for every source, so layers would move.")
    if any(source.get("layer_range") != first for source in sources) or layers not in (0, first[1]):
        all_layers = layers or "all layers"
        raise RecipeError(f"The slice's `layer_range` is {first}; [0, {all_layers}] for every source is supported.")
    entries = [{key: value for key, value in source.items() if key != "layer_range"} for source in sources]
    return entries, own


def _find(model: str, experts: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return the zoo's expert that a model path means: by its file, its name, the end of its name, or its folder.

    An end begins where a word of the name does, and none counts in a name that ends in another data set's.
    """
    path = PurePath(model)
    for text in (model, path.name, path.stem):
        if found := _named(text, experts):
            return found
    name, said = path.stem if path.suffix in FILES else path.name, None
    for word in re.finditer(r"(?<![^\W_])[^\W_]", name):
        tail = name[word.start() :]
        if found := _named(tail, experts):
            known = (find_dataset(spelling) for spelling in (found, *experts[found]))
            return found if said is None or said in [row.name for row in known if row] else None
        said = said or ((row := find_dataset(tail)) and row.name)
    return None if said or name == "base" else _named(path.parent.name, experts)


def _named(text: str, experts: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return the expert with a name or another spelling of these letters, one with the name before others."""
    wanted = _letters(text)
    found = [name for name, spellings in experts.items() if wanted in map(_letters, (name, *spellings))]
    return min(found, key=lambda name: _letters(name) != wanted) if wanted and found else None


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
