"""Merging weights straight from files: no images, no store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from ...catalog import MERGE_METHODS, resolve
from ...errors import CheckpointError, MergeError, RecipeError
from ...merging.apply import merge as merge_experts
from ...recipe import MethodCall, Recipe
from ...store.outputs import check_file, new_file
from ...types import Static, Tensors, Weights
from ...weights import LazyTaskVectors, check_same_architecture, open_weights, visual, write_weights
from ...weights.families import family_warnings, moved
from ...zoo.folder import Zoo
from ...zoo.metadata import describe_model, header_text, read_document
from .receipt import receipt


class WeightsOnly:
    """The context of a merge that has weights and nothing else."""

    def __init__(self, experts: Sequence[str], seed: int = 0) -> None:
        self.tasks, self.seed = tuple(experts), seed
        self._cache: dict[str, Tensors] = {}

    def progress(self, fraction: float, message: str = "") -> None:
        """Drop it."""

    def cached(self, expert: str, quantity: str, params: Mapping[str, Any], compute: Callable[[], Tensors]) -> Tensors:
        """Keep what one expert's computation gave for the length of this merge."""
        key = f"{expert} {quantity} {sorted(params.items())}"
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]

    def batches(self, task: str, split: str, size: int) -> Iterator[NoReturn]:
        """Refuse: there are no images."""
        raise MergeError("This method needs images. Merge a zoo that has data, through a recipe.")

    def forward(self, weights: Tensors, images: torch.Tensor) -> NoReturn:
        """Refuse: there is no encoder."""
        raise MergeError("This method needs the encoder. Merge a zoo, through a recipe.")

    def head(self, task: str) -> NoReturn:
        """Refuse: there are no heads."""
        raise MergeError("This method needs classification heads. Merge a zoo that has them, through a recipe.")


def merge_files(
    base: Path,
    experts: Sequence[Path],
    merge: MethodCall,
    transforms: Sequence[MethodCall],
    out: Path,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
    *,
    force: bool = False,
    header: Mapping[str, str] | None = None,
) -> float:
    """Merge checkpoint files and write one.

    Args:
        base: the pretrained weights.
        experts: the experts' weights, fine-tuned from the base.
        merge: the merge method.
        transforms: in the order in which they are applied.
        out: the safetensors file to write.
        seed: seed of random choices.
        say: told what a person should know of the experts.
        force: replace a file that is there already; the base and the experts never are.
        header: free text for the file's header, beside what it says of the model.

    Returns:
        Seconds from opening the first file to the written result.

    Raises:
        EngineError: a file or a parameter that cannot be used; nothing is written then.
    """
    if not experts:
        raise RecipeError("No expert is given; name at least one file with --expert.")
    check_file(out, (base, *experts), force=force)
    started = time.perf_counter()
    names = _distinct_names(experts)
    models = {name: visual(open_weights(path)) for name, path in zip(names, experts, strict=True)}
    base_weights = visual(open_weights(base))
    for name, weights in models.items():
        check_same_architecture(base_weights, weights, name)
    vectors = LazyTaskVectors(base_weights, models)
    merged = merge_experts(base_weights, vectors, transforms, merge, WeightsOnly(names, seed))
    if not isinstance(merged, Static):
        each = MERGE_METHODS[merge.method].yields.removeprefix("per_").replace("sample", "image")
        raise MergeError(f"This method makes weights for each {each}; one file cannot hold them. Use `run` with a zoo.")
    with new_file(out, (base, *experts), force=force) as file:
        write_weights(file, _Finite(merged.weights), metadata={**_described(base), **(header or {})})
    seconds = time.perf_counter() - started
    for warning in family_warnings(moved(base_weights, models)):
        say(f"Warning: {warning}")
    return seconds


def merge_recipe(
    recipe: Recipe, out: Path, say: Callable[[str], None] = lambda text: None, *, force: bool = False
) -> float:
    """Merge the experts of a recipe's zoo and write one file; methods that need images are refused.

    Returns:
        Seconds from opening the first file to the written result.
    """
    recipe = resolve(recipe)
    zoo = Zoo.open(recipe.zoo)
    chosen = zoo.choose(recipe)
    if any(weight != 1.0 for _, weight in chosen):
        raise RecipeError("Weights of single experts are honoured by `run`; leave them at 1 here.")
    paths = [zoo.weights_path(name) for name, _ in chosen]
    base, seed = zoo.weights_path("base"), recipe.seeds[0]
    return merge_files(
        base, paths, recipe.merge, recipe.transforms, out, seed, say, force=force, header=receipt(recipe)
    )


def _described(base: Path) -> dict[str, str]:
    """Return the header of a merge: what its base says of itself, or its zoo does; empty where neither is known."""
    document = read_document(open_weights(base))
    if not document and (base.parent / "zoo.yaml").is_file():
        zoo = Zoo.open(str(base.parent))
        document = describe_model(zoo) if zoo.manifest.backbone.weights == base.name else {}
    return header_text(document) if document else {}


class _Finite:
    """Weights that refuse to hand out a value that is not finite."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
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
            CheckpointError: it holds NaN or an infinity, which came from one of the files.
        """
        tensor = self._weights.tensor(name)
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise CheckpointError(
                f"The merged {name} holds values that are not finite, so one of the files does. "
                "Check the base and the experts for NaN and Inf."
            )
        return tensor


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the experts' names from their files, numbered where two files share one."""
    stems = [path.stem for path in paths]
    return [stem if stems.count(stem) == 1 else f"{stem}_{number}" for number, stem in enumerate(stems)]
