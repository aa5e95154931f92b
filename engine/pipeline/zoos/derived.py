"""Zoos that are made from another one by training: experts of the same tasks by several recipes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from ...errors import RecipeError, ZooError, nearest
from ...manifest import ASSETS, SAFE_NAME, Manifest, read_manifest
from ...recipe import Frozen, explain, read_yaml
from ...store import Store
from ...types import Progress
from ...zoo.folder import Zoo
from ...zoo.making.copy import copy_zoo
from .request import FinetuneRequest

FOLDER = ASSETS / "derived"
Train = Callable[[dict[str, Any], Store, Progress], object]


class Trained(Frozen):
    """One way in which the experts of all tasks are trained."""

    called: str = Field("", pattern=rf"^$|{SAFE_NAME}")  # by default as its recipe
    config: dict[str, Any] = Field(default_factory=dict)  # beside the settings that all share


class Derived(Frozen):
    """A zoo that another one's base and images make."""

    format: Literal[1]
    name: str = Field(pattern=SAFE_NAME)
    title: str
    description: str = ""
    zoo: str  # whose base, images and heads it has
    tasks: tuple[str, ...] = Field(min_length=2)  # in domain
    config: dict[str, Any] = Field(default_factory=dict)  # settings of fine-tuning that all share
    experts: tuple[Trained, ...] = Field(min_length=1)

    def request(self, folder: Path, trained: Trained, seed: int) -> FinetuneRequest:
        """Return what asks for one way of training.

        Raises:
            RecipeError: settings that cannot be used.
        """
        config = {**self.config, **trained.config, "seed": seed}
        return FinetuneRequest.parse(
            {"zoo": str(folder), "tasks": self.tasks, "called": trained.called, "config": config}
        )


def derived_names() -> list[str]:
    """Return the zoos that can be made from others, in alphabetical order."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_derived(name: str) -> Derived:
    """Read how a zoo is made from another one.

    Raises:
        RecipeError: there is none of this name, or what is wrong with it.
    """
    names = derived_names()
    if name not in names:
        raise RecipeError(f"There is no zoo '{name}' to be made from another one. {nearest(name, names)}")
    document = read_yaml(FOLDER / f"{name}.yaml", RecipeError, "zoo made from another one")
    try:
        return TypeAdapter(Derived).validate_python(document)
    except ValidationError as error:
        raise RecipeError(f"{name}.yaml cannot be used: {explain(error, Derived)}") from error


def build_derived(
    name: str, out: Path, store: Store, train: Train, *, seed: int = 1, say: Callable[[str], None], progress: Progress
) -> None:
    """Make a zoo from another one and train its experts; goes on where it was stopped.

    Args:
        name: one of :func:`derived_names`.
        out: its folder; a new one, or one that this has begun.
        store: keeps trained experts and checkpoints.
        train: carries a request for fine-tuning out.
        seed: of the experts.
        say: told what has been done.
        progress: told how far it is.

    Raises:
        EngineError: the folder holds something else, or an expert cannot be trained.
    """
    wanted = read_derived(name)
    if not out.exists():
        _begin(wanted, out, progress)
        say(f"{out} has base, heads and images of {wanted.zoo}")
    if read_manifest(out).title != wanted.title:
        raise ZooError(f"{out} holds another zoo. Give a new folder.")
    for trained in wanted.experts:
        asked = wanted.request(out, trained, seed)
        known = read_manifest(out)
        missing = tuple(task for task in wanted.tasks if known.expert_of(task, asked.method) is None)
        if missing:
            train(asked.model_copy(update={"tasks": missing}).model_dump(mode="json"), store, progress)
        say(f"{asked.method}: {_accuracies(out, asked.method)}")


def _begin(wanted: Derived, out: Path, progress: Progress) -> None:
    """Copy the other zoo without its experts; its other tasks stay only where they are out of domain."""
    copy_zoo(Zoo.open(wanted.zoo), out, progress, wanted.tasks)
    document = read_yaml(out / "zoo.yaml", ZooError, "manifest")
    kept = [task for task in document["tasks"] if task["domain"] == "out" or task["name"] in wanted.tasks]
    told = wanted.model_dump(mode="json", include={"name", "title", "description"})
    document |= {**told, "experts": [], "references": [], "tasks": kept}
    Manifest.model_validate(document)
    dropped = {task.name for task in Zoo.open(wanted.zoo).manifest.tasks} - {task["name"] for task in kept}
    for name in ("experts", *(f"data/{task}" for task in dropped)):
        shutil.rmtree(out / name, ignore_errors=True)
    for name in ("multitask.safetensors", "record.yaml"):
        (out / name).unlink(missing_ok=True)
    head = (out / "zoo.yaml").read_text("utf-8").splitlines(keepends=True)[0]
    (out / "build.json").write_text(json.dumps({"format": 1, "derived": wanted.model_dump(mode="json")}, indent=1))
    (out / "zoo.yaml").write_text(head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110))


def _accuracies(folder: Path, method: str) -> str:
    """Return the validation accuracies of one way of training, by task."""
    finetuned = json.loads((folder / "build.json").read_text("utf-8"))["finetuned"]
    names = [expert.name for expert in read_manifest(folder).experts if expert.method == method]
    return ", ".join(f"{name} {finetuned[name]['validation_accuracy']['expert']:.1f} %" for name in names)
