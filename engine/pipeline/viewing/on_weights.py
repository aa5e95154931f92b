"""Views on weights: what they read, and how what they left is read. They share the merge with the runs that made it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file

from ...errors import MergeError, StoreError
from ...recipe import Recipe
from ..sources import Sources
from ..steps import A, Inputs, StepParams, apart

if TYPE_CHECKING:
    from ...types import Weights
    from ...zoo.folder import Zoo
    from ..run.plan import RunSteps

PRETRAINED, MERGED = "pretrained", "merged"


class ModelsParams(StepParams):
    """Parameters of steps that read the weights of a recipe's base and experts."""

    experts: tuple[str, ...]
    digests: dict[str, str]  # by the expert's name and ``base``
    tasks: dict[str, str]  # expert → its task
    sources: Sources = apart()

    @classmethod
    def of(cls, run: RunSteps) -> ModelsParams:
        """Return the parameters for a run's models."""
        names = tuple(name for name, _ in run.experts)
        table = run.zoo.manifest.expert_table
        tasks = {name: table[name].task for name in names}
        return cls(experts=names, digests=run.digests_of(*names), tasks=tasks, sources=run.sources)

    def models(self) -> tuple[Weights, dict[str, Weights]]:
        """Open the base's and the experts' weights.

        Raises:
            CheckpointError: an expert is of another architecture than the base.
        """
        from ...weights import check_same_architecture

        zoo = self.sources.open()
        base = zoo.weights("base")
        experts = {name: zoo.weights(name) for name in self.experts}
        for name, weights in experts.items():
            check_same_architecture(base, weights, name)
        return base, experts


@dataclass(frozen=True)
class MergeInput(Inputs[A]):
    """The merge of a recipe."""

    merge: A


@dataclass(frozen=True, eq=False)
class Measured:
    """Names and arrays that a view on weights left."""

    document: dict[str, Any]
    arrays: dict[str, np.ndarray]


def merge_only(recipe: Recipe) -> Recipe:
    """Return a recipe without what does not touch weights, so that runs with other calibrators share a view."""
    return recipe.model_copy(update={"calibrators": (), "seeds": recipe.seeds[:1]})


def read_measured(folder: Path, name: str) -> Measured:
    """Read ``geometry``, ``kept`` or ``spectra`` from a view's folder.

    Raises:
        StoreError: it is not there or damaged.
    """
    try:
        document = json.loads((folder / f"{name}.json").read_text("utf-8"))
        arrays = load_file(folder / f"{name}.safetensors")
    except (OSError, ValueError) as error:
        raise StoreError(f"What was measured of the weights cannot be read ({error}). Measure it again.") from error
    wide = {key: array.astype("float32") if array.dtype == "float16" else array for key, array in arrays.items()}
    return Measured(document, wide)  # shipped ones are in half precision, sums of which would overflow


def write_names(output: Path, name: str, layers: Iterable[str], models: Iterable[str]) -> None:
    """Write the names of layers and models beside a view's arrays."""
    (output / f"{name}.json").write_text(json.dumps({"layers": list(layers), "models": list(models)}))


def kind_of(merge: Path) -> str:
    """Return whether a merge is ``static``, ``per_task`` or ``per_sample``."""
    return json.loads((merge / "merged.json").read_text("utf-8"))["kind"]


def merged_for(params: ModelsParams, merge: Path, base: Weights, expert: str) -> Weights:
    """Open the merged weights for an expert's task.

    Raises:
        MergeError: the merge depends on each single image, so there is no one merged vector.
    """
    from ..run.merging import load_merged

    kind = kind_of(merge)
    if kind not in ("static", "per_task"):
        raise MergeError(
            "This merge makes other weights for every image, so there is no merged vector to look at. "
            "Choose a run with a static merge or one by task."
        )
    return load_merged(merge, base, params.tasks[expert] if kind == "per_task" else None)


def model_of(zoo: Zoo, name: str, merge: Path | None) -> Weights:
    """Open the weights of ``pretrained``, ``merged``, an expert or a reference.

    Raises:
        MergeError: the merge makes no single model.
    """
    if name != MERGED:
        return zoo.weights("base" if name == PRETRAINED else name)
    if merge is None or kind_of(merge) != "static":
        raise MergeError(
            "This merge has no single merged model: its weights depend on the task or the image. "
            "Choose another end of the path, or a run with a static merge."
        )
    from ..run.merging import load_merged

    return load_merged(merge, zoo.weights("base"))
