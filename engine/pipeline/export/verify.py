"""Verifying a merged file: its header says of what it was made and how; that is done again and compared."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from ...catalog import adds_factors, looks_at_images, resolve
from ...errors import CheckpointError, EngineError
from ...recipe import Recipe, parse_recipe
from ...store import Store
from ...types import Progress, Weights
from ...weights import encoder_part, open_weights
from ...zoo.folder import Zoo
from ..executor import Silent, run_inline
from ..graph import Plan
from ..run.plan import steps_of
from ..run.receipt import ORIGINS, RECIPE, beside, made_by, origins_of, receipt_text
from .merge_files import merge_recipe

# What other machines' rounding in forward passes may change of a merge that looks at images, of its length.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Verified:
    """The comparison of a file with the merge that its header describes, done again."""

    tensors: int
    differing: tuple[str, ...]  # names of tensors that are not equal to the bit
    largest: float  # absolute difference of any two entries
    changed: tuple[str, ...]  # inputs whose files are others by now
    receipt: str  # ``equal``, ``missing``, or the name of the first part of the receipt that is not the same
    distance: float = 0.0  # of the merge from the file's, relative to the length of what it adds to the base
    images: tuple[str, ...] = ()  # tasks whose images the method looked at

    @property
    def near(self) -> bool:
        """Return whether tensors are the same: to the bit, or for a method that looks at images within TOLERANCE."""
        return not self.differing or bool(self.images and self.distance <= TOLERANCE)

    @property
    def holds(self) -> bool:
        """Return whether inputs, tensors and the receipt, where there is one, are the same."""
        return self.near and not self.changed and self.receipt in ("equal", "missing")


def verify(path: Path, zoo: str | None = None, progress: Progress | None = None) -> Verified:
    """Do a merge again and compare it with a file.

    A method that looks at images is given the same images in the same order, by the same seed.

    Args:
        path: a merged file that says how it was made.
        zoo: where the zoo lies now; None takes the place in the recipe.
        progress: told how far it is.

    Returns:
        Inputs that changed, tensors that differ, and the comparison of the receipt beside the file with a new one.

    Raises:
        EngineError: the header says too little, the zoo or its images are gone, or tensors are others, of other
            shapes or of other dtypes.
    """
    file = open_weights(path)
    header: Mapping[str, Any] = getattr(file, "metadata", {})
    if RECIPE not in header or ORIGINS not in header:
        raise CheckpointError(f"{path.name} does not say how it was made. {_who_says(path)}")
    recipe, stated = _read(header, path)
    recipe = recipe.model_copy(update={"zoo": zoo}) if zoo else recipe
    source = Zoo.open(recipe.zoo)
    origins = origins_of(source, recipe)
    now = {(origin.role, origin.name): origin.sha256 for origin in origins}
    images = tuple(origin.name for origin in origins if origin.role == "data")
    changed = tuple(_label(*item) for item, digest in stated.items() if now.get(item) != digest)
    looks = looks_at_images(recipe) or adds_factors(recipe)
    unknown = [name for name in images if ("data", name) not in stated]
    if looks and unknown:
        raise CheckpointError(
            f"{path.name} was merged by {recipe.merge.method}, which looks at images, and does not say at which. "
            "Export the run again; what is written now names them by their digests."
        )
    with tempfile.TemporaryDirectory(prefix="mergelens-") as folder:
        again = _with_images(recipe, Path(folder), progress) if looks else _from_files(recipe, Path(folder))
        ours, theirs, base = encoder_part(file), encoder_part(open_weights(again)), source.weights("base")
        if set(ours.names) != set(theirs.names):
            raise CheckpointError(f"{path.name} holds other tensors than the merge that its header describes.")
        for name in ours.names:
            if (found := _form(ours, name)) != (made := _form(theirs, name)):
                raise CheckpointError(
                    f"{path.name} holds other tensors than the merge that its header describes: {name} is {found}, the "
                    f"merge's {made}. The file was changed after it was made; make it again."
                )
        differing, largest, distance = _differences(ours, theirs, base)
        made = made_by(source, resolve(recipe), origins)
        same = _compare(beside(path), receipt_text(made, open_weights(path))) if beside(path).is_file() else "missing"
    return Verified(len(ours.names), differing, largest, changed, same, distance, images)


def _who_says(path: Path) -> str:
    """Return which files say how they were made; of a run's own weights, how to have such a file of them."""
    if (path.parent / "report.json").is_file():
        return (
            "It lies in the folder of a run, whose weights are shared by all runs of the same merge. Export them with "
            f"recipe and digests: `python -m engine export {path.parent} --to M.safetensors`; then verify that file."
        )
    return "Files of `merge RECIPE` and `export --to NAME.safetensors` do."


def _label(role: str, name: str) -> str:
    known = {"data": f"images of {name}", "base": f"the base {name}", "heads": "heads", "factors": f"factors of {name}"}
    return known.get(role, name)


def _from_files(recipe: Recipe, folder: Path) -> Path:
    merge_recipe(recipe, folder / "again.safetensors")
    return folder / "again.safetensors"


def _with_images(recipe: Recipe, folder: Path, progress: Progress | None) -> Path:
    """Carry out the merge of a run, and nothing else of it, in a store of its own."""
    store = Store(folder)
    run = steps_of(recipe, store)
    plan = Plan.to(run.merge(recipe.seeds[0]), run.steps)
    return run_inline(plan, store, _Listener(progress)) / "merged.safetensors"


class _Listener(Silent):
    """Passes progress on."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def progress(self, fraction: float, message: str) -> None:
        """Pass it on."""
        if self._progress is not None:
            self._progress(fraction, message)


def _form(weights: Weights, name: str) -> str:
    return f"{weights.dtype(name)} of shape {tuple(weights.shape(name))}".removeprefix("torch.")


def _differences(ours: Weights, theirs: Weights, base: Weights) -> tuple[tuple[str, ...], float, float]:
    """Return names of tensors that differ, the largest difference, and the distance relative to what was added."""
    differing, largest, apart, length = [], 0.0, 0.0, 0.0
    for name in ours.names:
        one, other = ours.tensor(name), theirs.tensor(name)
        length += float((one.double() - base.tensor(name).double()).square().sum())
        if not torch.equal(one, other):
            gap = (one.double() - other.double()).abs()
            differing.append(name)
            largest, apart = max(largest, float(gap.max())), apart + float(gap.square().sum())
    return tuple(differing), largest, (apart / length) ** 0.5 if length else float(bool(differing))


def _compare(stated: Path, found: str) -> str:
    """Return ``equal``, or the first part of a receipt that is not the same."""
    try:
        text = stated.read_text("utf-8")
        before, now = json.loads(text), json.loads(found)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{stated.name} cannot be read: {str(error)[:200]}.") from error
    if text == found:
        return "equal"
    if not isinstance(before, dict):
        return "all of it"
    return next((name for name in now if before.get(name, ...) != now[name]), "its form")


def _read(header: Mapping[str, Any], path: Path) -> tuple[Recipe, dict[tuple[str, str], str]]:
    try:
        recipe = parse_recipe(yaml.safe_load(header[RECIPE]))
        origins = {(item["role"], item["name"]): item["sha256"] for item in json.loads(header[ORIGINS])}
    except (yaml.YAMLError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"The header of {path.name} cannot be read: {str(error)[:200]}.") from error
    except EngineError as error:
        raise CheckpointError(f"The recipe in the header of {path.name} cannot be used: {error}") from error
    return recipe, origins
