"""Zoos that are made from another one by training: experts of the same tasks by several recipes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
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
from ...zoo.making.records import training_records
from .request import FinetuneRequest

FOLDER = ASSETS / "derived"
CarryOut = Callable[[dict[str, Any], Store, Progress], object]


class Taught(Frozen):
    """The part of another zoo's experts in a training, each teaching its own task."""

    temperature: float = 2.0
    weight: float = 0.9


class Aligned(Frozen):
    """One order of the units of experts that start from another base, listed beside them."""

    called: str = Field(pattern=SAFE_NAME)
    method: str
    params: dict[str, Any] = Field(default_factory=dict)


class Trained(Frozen):
    """One way in which the experts of all tasks are trained."""

    called: str = Field("", pattern=rf"^$|{SAFE_NAME}")  # by default as its recipe
    config: dict[str, Any] = Field(default_factory=dict)  # beside the settings that all share
    start: Literal["", "other"] = ""  # the base of another zoo, which is named when this one is made
    teacher: Taught | None = None
    aligned: tuple[Aligned, ...] = ()

    @property
    def needs_another(self) -> bool:
        """Return whether another zoo of the same tasks has a part in it."""
        return bool(self.start) or self.teacher is not None


class Derived(Frozen):
    """A zoo that another one's base and data make."""

    format: Literal[1]
    name: str = Field(pattern=SAFE_NAME)
    title: str
    description: str = ""
    zoo: str  # whose base, data and heads it has
    keep: bool = False  # whether its experts stay; jointly trained models never do
    tasks: tuple[str, ...] = Field(min_length=2)  # in domain
    config: dict[str, Any] = Field(default_factory=dict)  # settings of fine-tuning that all share
    experts: tuple[Trained, ...] = Field(min_length=1)

    @property
    def needs_another(self) -> bool:
        """Return whether another zoo of the same tasks is needed."""
        return any(trained.needs_another for trained in self.experts)

    def requests(self, folder: Path, trained: Trained, seed: int, other: str = "") -> list[FinetuneRequest]:
        """Return what asks for one way of training: all tasks at once, or task by task where each has a teacher.

        Raises:
            RecipeError: settings that cannot be used.
        """
        config = {**self.config, **trained.config, "seed": seed}
        asked: dict[str, Any] = {"zoo": str(folder), "tasks": self.tasks, "called": trained.called, "config": config}
        if trained.start:
            asked["start"] = {"zoo": other}
        if trained.teacher is None:
            return [FinetuneRequest.parse(asked)]
        models = {task: task for task in self.tasks} if not other else _teachers(other, self.tasks)
        teach = {"zoo": other, **trained.teacher.model_dump()}
        return [
            FinetuneRequest.parse({**asked, "tasks": [task], "teacher": {**teach, "model": model}})
            for task, model in models.items()
        ]


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
    name: str,
    out: Path,
    store: Store,
    train: CarryOut,
    align: CarryOut,
    *,
    seed: int = 1,
    other: str = "",
    say: Callable[[str], None],
    progress: Progress,
) -> None:
    """Make a zoo from another one and train its experts; goes on where it was stopped.

    Args:
        name: one of :func:`derived_names`.
        out: its folder; a new one, or one that this has begun.
        store: keeps trained experts and checkpoints.
        train: carries a request for fine-tuning out.
        align: carries a request for aligning experts out.
        seed: of the experts.
        other: another zoo of the same tasks, for experts that start from its base or learn from its experts.
        say: told what has been done.
        progress: told how far it is.

    Raises:
        EngineError: the folder holds something else or experts of another seed, or an expert cannot be trained.
    """
    wanted = read_derived(name)
    if wanted.needs_another and not other:
        raise ZooError(
            f"Some experts of {name} start from another zoo's base or learn from its experts. Name a zoo of the same "
            f"tasks with --other, such as the twin that `zoo build {wanted.zoo} --twin` makes."
        )
    if not out.exists():
        _begin(wanted, out, progress)
        say(f"{out} has base, heads and {Zoo.open(wanted.zoo).modality.many} of {wanted.zoo}")
    if read_manifest(out).title != wanted.title:
        raise ZooError(f"{out} holds another zoo. Give a new folder.")
    _check_seed(wanted, out, seed, other)
    for trained in wanted.experts:
        for asked in wanted.requests(out, trained, seed, other):
            missing = _missing(read_manifest(out), asked)
            if missing:
                train(asked.model_copy(update={"tasks": missing}).model_dump(mode="json"), store, progress)
        say(f"{asked.method}: {_accuracies(out, asked)}")
        for request in _orders(out, asked.method, trained.aligned):
            align(request, store, progress)
            say(f"{request['called']}: {', '.join(request['experts'])} by {request['method']}")


def _check_seed(wanted: Derived, out: Path, seed: int, other: str) -> None:
    """Refuse to go on in a folder with another seed than that of the experts that were trained there."""
    known, records = read_manifest(out), training_records(out)
    for trained in wanted.experts:
        for asked in wanted.requests(out, trained, seed, other):
            ways = [known.expert_of(task, asked.method) for task in asked.tasks]
            names = [asked.config.row.reference] if asked.config.row.joint else [way.name for way in ways if way]
            seeds = {records[name].get("config", {}).get("seed", seed) for name in names if name in records}
            if seeds - {seed}:
                found = ", ".join(str(number) for number in sorted(seeds - {seed}))
                raise ZooError(
                    f"{out} has experts of the seed {found}, and experts of the seed {seed} are asked for. Give a new "
                    f"folder, or go on here with --expert-seed {found}."
                )


def _missing(known: Manifest, asked: FinetuneRequest) -> tuple[str, ...]:
    """Return the tasks that have yet to be trained on: all or none where one model learns all of them."""
    row = asked.config.row
    if row.joint:
        return () if any(reference.name == row.reference for reference in known.references) else asked.tasks
    return tuple(task for task in asked.tasks if known.expert_of(task, asked.method) is None)


def _teachers(zoo: str, tasks: Sequence[str]) -> dict[str, str]:
    """Return the expert of another zoo that teaches each task.

    Raises:
        ZooError: it has none.
    """
    manifest, found = Zoo.open(zoo).manifest, {}
    for task in tasks:
        expert = manifest.expert_of(task)
        if expert is None:
            raise ZooError(f"The zoo '{manifest.name}' has no expert of '{task}' that could teach it.")
        found[task] = expert.name
    return found


def _orders(folder: Path, method: str, orders: Sequence[Aligned]) -> Iterator[dict[str, Any]]:
    """Ask for every order of the units of one way's experts that is not there."""
    for order in orders:
        manifest = read_manifest(folder)
        names = [
            e.name for e in manifest.experts if e.method == method and not manifest.expert_of(e.task, order.called)
        ]
        if names:
            yield {"zoo": str(folder), "experts": names, **order.model_dump(mode="json")}


def _begin(wanted: Derived, out: Path, progress: Progress) -> None:
    """Copy the other zoo, its experts only if they stay; its other tasks stay only where they are out of domain."""
    copy_zoo(Zoo.open(wanted.zoo), out, progress, wanted.tasks)
    document = read_yaml(out / "zoo.yaml", ZooError, "manifest")
    kept = [task for task in document["tasks"] if task["domain"] == "out" or task["name"] in wanted.tasks]
    told = wanted.model_dump(mode="json", include={"name", "title", "description"})
    names = {task["name"] for task in kept}
    experts = [expert for expert in document["experts"] if wanted.keep and expert["task"] in names]
    document |= {**told, "experts": experts, "references": [], "tasks": kept}
    Manifest.model_validate(document)
    dropped = {task.name for task in Zoo.open(wanted.zoo).manifest.tasks} - names
    for name in (*(() if wanted.keep else ("experts",)), *(f"data/{task}" for task in dropped)):
        shutil.rmtree(out / name, ignore_errors=True)
    for name in ("multitask.safetensors", "record.yaml"):
        (out / name).unlink(missing_ok=True)
    head = (out / "zoo.yaml").read_text("utf-8").splitlines(keepends=True)[0]
    (out / "build.json").write_text(json.dumps({"format": 1, "derived": wanted.model_dump(mode="json")}, indent=1))
    (out / "zoo.yaml").write_text(head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110))


def _accuracies(folder: Path, asked: FinetuneRequest) -> str:
    """Return the validation accuracies of one way of training, by task."""
    finetuned = json.loads((folder / "build.json").read_text("utf-8"))["finetuned"]
    experts = [expert.name for expert in read_manifest(folder).experts if expert.method == asked.method]
    names = [asked.config.row.reference] if asked.config.row.joint else experts
    return ", ".join(f"{name} {finetuned[name]['validation_accuracy']['expert']:.1f} %" for name in names)
