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

from ...catalog import resolve
from ...errors import CheckpointError, EngineError
from ...recipe import Recipe, parse_recipe
from ...weights import open_weights, visual
from ...zoo.folder import Zoo
from ..run.receipt import ORIGINS, RECIPE, beside, made_by, origins_of, receipt_text
from .merge_files import merge_recipe


@dataclass(frozen=True)
class Verified:
    """The comparison of a file with the merge that its header describes, done again."""

    tensors: int
    differing: tuple[str, ...]  # names of tensors that are not equal to the bit
    largest: float  # absolute difference of any two entries
    changed: tuple[str, ...]  # inputs whose files are others by now
    receipt: str  # ``equal``, ``missing``, or the name of the first part of the receipt that is not the same

    @property
    def holds(self) -> bool:
        """Return whether inputs, tensors and the receipt, where there is one, are the same to the bit."""
        return not self.differing and not self.changed and self.receipt in ("equal", "missing")


def verify(path: Path, zoo: str | None = None) -> Verified:
    """Do a merge again and compare it with a file.

    Args:
        path: a merged file that says how it was made.
        zoo: where the zoo lies now; None takes the place in the recipe.

    Returns:
        Inputs that changed, tensors that differ, and the comparison of the receipt beside the file with a new one.

    Raises:
        EngineError: the header says too little, the zoo is gone, or the method needs images.
    """
    file = open_weights(path)
    header: Mapping[str, Any] = getattr(file, "metadata", {})
    if RECIPE not in header or ORIGINS not in header:
        raise CheckpointError(
            f"{path.name} does not say how it was made. Files of `merge RECIPE` and `export --to NAME.safetensors` do."
        )
    recipe, stated = _read(header, path)
    recipe = recipe.model_copy(update={"zoo": zoo}) if zoo else recipe
    source = Zoo.open(recipe.zoo)
    origins = origins_of(source, recipe)
    now = {(origin.role, origin.name): origin.sha256 for origin in origins}
    changed = tuple(name for (role, name), digest in stated.items() if now.get((role, name)) != digest)
    with tempfile.TemporaryDirectory(prefix="mergelens-") as folder:
        again = Path(folder) / "again.safetensors"
        merge_recipe(recipe, again)
        ours, theirs = visual(file), visual(open_weights(again))
        if set(ours.names) != set(theirs.names):
            raise CheckpointError(f"{path.name} holds other tensors than the merge that its header describes.")
        differing, largest = [], 0.0
        for name in ours.names:
            one, other = ours.tensor(name), theirs.tensor(name)
            if not torch.equal(one, other):
                differing.append(name)
                largest = max(largest, float((one.double() - other.double()).abs().max()))
        made = made_by(source, resolve(recipe), origins)
        same = _compare(beside(path), receipt_text(made, open_weights(path))) if beside(path).is_file() else "missing"
    return Verified(len(ours.names), tuple(differing), largest, changed, same)


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
