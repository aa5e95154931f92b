"""Merging weights straight from files: no images, no store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from ...catalog import MERGE_METHODS, check_experts, resolve
from ...errors import CheckpointError, MergeError, RecipeError
from ...merging.apply import merge as merge_experts
from ...recipe import MethodCall, Recipe
from ...store.digests import contents_digest
from ...store.outputs import check_file, new_file
from ...types import Static, Weights
from ...weights import LazyTaskVectors, check_same_architecture, encoder_part, open_weights, write_weights
from ...weights.align import Selected
from ...weights.families import family_warnings, moved
from ...zoo.folder import Zoo
from ...zoo.metadata import describe_model, header_text, read_document
from ...zoo.names import distinct
from ..run.merging import remarks
from ..run.receipt import Made, Origin, beside, header_of, origins_of, receipt_text
from ..run.weights_only import WeightsOnly


def merge_files(
    base: Path,
    experts: Sequence[Path] | Mapping[str, Path],
    merge: MethodCall,
    transforms: Sequence[MethodCall],
    out: Path,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
    *,
    force: bool = False,
    header: Mapping[str, str] | None = None,
    weights: Mapping[str, float] | None = None,
    origins: Sequence[Origin] | None = None,
    receipt: bool = False,
) -> float:
    """Merge checkpoint files and write one.

    Args:
        base: the pretrained weights.
        experts: the experts' weights, fine-tuned from the base; by name, or named after their files.
        merge: the merge method.
        transforms: in the order in which they are applied.
        out: the safetensors file to write.
        seed: seed of random choices.
        say: told what a person should know of the experts; that weights are the same where their digests are known.
        force: replace a file that is there already; the base and the experts never are.
        header: free text for the file's header, beside what it says of the model.
        weights: how much of each expert's task vector takes part, by name; 1 where it is not said.
        origins: of the files, for the receipt; by default their names and digests.
        receipt: write the receipt beside the file as well, which reads everything once more.

    Returns:
        Seconds from opening the first file to the written result.

    Raises:
        EngineError: a file or a parameter that cannot be used; nothing is written then.
    """
    if not experts:
        raise RecipeError("No expert is given; name at least one file with --expert.")
    paths = dict(experts) if isinstance(experts, Mapping) else _by_name(experts)
    inputs = (base, *paths.values())
    for place in (out, beside(out)) if receipt else (out,):
        check_file(place, inputs, force=force)
    started = time.perf_counter()
    models = {name: _encoder(path) for name, path in paths.items()}
    base_weights = _encoder(base)
    for name, model in models.items():
        check_same_architecture(base_weights, model, name)
    factors = {name: (weights or {}).get(name, 1.0) for name in paths}
    vectors = LazyTaskVectors(base_weights, models, list(factors.values()))
    merged = merge_experts(base_weights, vectors, transforms, merge, WeightsOnly(tuple(paths), seed))
    if not isinstance(merged, Static):
        each = MERGE_METHODS[merge.method].yields.removeprefix("per_").replace("sample", "image")
        raise MergeError(f"This method makes weights for each {each}; one file cannot hold them. Use `run` with a zoo.")
    with new_file(out, inputs, force=force) as file:
        files = {base: base_weights, **{paths[name]: model for name, model in models.items()}}
        write_weights(file, _Finite(merged.weights, files), metadata={**_described(base), **(header or {})})
    seconds = time.perf_counter() - started
    for warning in family_warnings(moved(base_weights, models)):
        say(f"Warning: {warning}")
    known = (_origins(base, paths) if receipt else ()) if origins is None else origins
    digests = {origin.name: origin.sha256 for origin in known if origin.role in ("base", "expert")}
    for remark in remarks(digests, merged.info.details):
        say(f"Warning: {remark}")
    if receipt:
        made = Made(base_weights, models, factors, transforms, merge, seed, known)
        with new_file(beside(out), inputs, force=force) as file:
            file.write_text(receipt_text(made, open_weights(out)), "utf-8")
    return seconds


def merge_recipe(
    recipe: Recipe,
    out: Path,
    say: Callable[[str], None] = lambda text: None,
    *,
    force: bool = False,
    receipt: bool = False,
) -> float:
    """Merge the experts of a recipe's zoo and write one file; methods that need images are refused.

    Returns:
        Seconds from opening the first file to the written result.
    """
    recipe = resolve(recipe)
    zoo = Zoo.open(recipe.zoo)
    weights = dict(zoo.choose(recipe))
    check_experts(recipe, len(weights))
    origins = origins_of(zoo, recipe)
    return merge_files(
        zoo.weights_path("base"),
        {name: zoo.weights_path(name) for name in weights},
        recipe.merge,
        recipe.transforms,
        out,
        recipe.seeds[0],
        say,
        force=force,
        header=header_of(recipe, origins),
        weights=weights,
        origins=origins,
        receipt=receipt,
    )


def _described(base: Path) -> dict[str, str]:
    """Return the header of a merge: what its base says of itself, or its zoo does; empty where neither is known."""
    document = read_document(open_weights(base))
    if not document and (base.parent / "zoo.yaml").is_file():
        zoo = Zoo.open(str(base.parent))
        document = describe_model(zoo) if zoo.manifest.backbone.weights == base.name else {}
    return header_text(document) if document else {}


def _encoder(path: Path) -> Selected:
    """Open the encoder in a file.

    Raises:
        CheckpointError: it cannot be used; the message names the file.
    """
    weights = open_weights(path)
    try:
        return encoder_part(weights)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


class _Finite:
    """Weights, merged from those of some files, that refuse to hand out a value that is not finite."""

    def __init__(self, weights: Weights, files: Mapping[Path, Weights]) -> None:
        self._weights, self._files = weights, files
        self.names = weights.names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return self._weights.shape(name)

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of one tensor."""
        return self._weights.dtype(name)

    def tensor(self, name: str) -> torch.Tensor:
        """Return one tensor.

        Raises:
            CheckpointError: it holds NaN or an infinity; the files that do are named.
        """
        tensor = self._weights.tensor(name)
        if _finite(tensor):
            return tensor
        guilty = [str(path) for path, weights in self._files.items() if not _finite(weights.tensor(name))]
        why = (
            f"as it does in {', '.join(guilty)}. Choose other files, without NaN and Inf."
            if guilty
            else "which no file does, so the merge makes numbers that are too large. Lower the method's parameters."
        )
        raise CheckpointError(f"The merged {name} holds values that are not finite, {why}")


def _finite(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def _by_name(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the experts' files by their stems, later ones of the same stem numbered."""
    return dict(zip(distinct(path.stem for path in paths), paths, strict=True))


def _origins(base: Path, experts: Mapping[str, Path]) -> list[Origin]:
    found = [Origin("base", base.name, "", contents_digest(base), "", "")]
    return found + [Origin("expert", name, "", contents_digest(path), "", "") for name, path in experts.items()]
