"""A zoo folder opened for work: its manifest, its files' digests, and weights that are read tensor by tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import RecipeError, ZooError, nearest
from ..manifest import ELSEWHERE, Manifest, locate_zoo, manifest_file, read_manifest, resolve_inside
from ..preparation import Preparation
from ..recipe import Recipe
from ..store.digests import FileSet
from .modalities import Modality, modality_of
from .task_data import TaskData

if TYPE_CHECKING:
    from ..types import Weights
    from .encoders.heads import ZeroShotHead

Digest = Callable[[Path | FileSet], str]


@dataclass(frozen=True)
class Zoo:
    """One zoo. Nothing is read before it is asked for."""

    folder: Path
    manifest: Manifest
    built_heads: Path | None = None  # made from the text encoder, where the zoo brings no heads

    @classmethod
    def open(cls, zoo: str) -> Zoo:
        """Open a bundled zoo by name, or any zoo by path.

        Raises:
            ZooError: there is none, or its manifest cannot be used.
        """
        place = locate_zoo(zoo)
        return cls(manifest_file(place).parent, read_manifest(place))

    def with_heads(self, folder: str) -> Zoo:
        """Return the zoo with heads that a step built for it into ``folder``; the zoo itself where there is none."""
        return replace(self, built_heads=Path(folder) / "heads.safetensors") if folder else self

    def path(self, relative: str) -> Path:
        """Return the absolute path of a file that the manifest names; it must exist.

        Raises:
            ZooError: the file is missing.
        """
        if relative.startswith(ELSEWHERE):
            raise self._not_here(relative)
        path = resolve_inside(self.folder, relative)
        if not path.is_file():
            raise ZooError(f"zoo.yaml names '{relative}', which is missing from {self.folder}.")
        return path

    @cached_property
    def data(self) -> Mapping[str, TaskData]:
        """Return the data of every task that names some; each is opened and checked when it is first looked up."""
        return _Opened(self)

    @property
    def modality(self) -> Modality:
        """Return the kind of data that the zoo is of."""
        return modality_of(self.manifest)

    def preprocess(self) -> Preparation:
        """Return how samples become tensors."""
        return self.modality.preprocessing(self.folder, self.manifest)

    @cached_property
    def text_problem(self) -> str:
        """Return why the zoo's text encoder gives no heads; '' where it can."""
        from .encoders.text import text_problem

        return text_problem(self.folder, self.manifest)

    def heads(self, tasks: list[str]) -> tuple[dict[str, ZeroShotHead], list[str]]:
        """Return the heads of some tasks, and warnings to show.

        Raises:
            ZooError: there are none, or one does not fit its task.
        """
        from .encoders.heads import head_of, read_heads
        from .encoders.text import build_heads

        if self.manifest.heads is None and self.built_heads is None and not self.text_problem:
            made = build_heads(self.folder, self.manifest, tasks, lambda fraction, message="": None)
            return {task: head_of(self.folder, self.manifest, weight) for task, weight in made.items()}, []
        return read_heads(self.folder, self.manifest, tasks, self.built_heads)

    def open_data(self, task: str) -> TaskData | None:
        """Return the data of one task, None where it names none; what is wrong with other tasks does not matter.

        Raises:
            DataError: the data cannot be used.
        """
        entry = self.manifest.task_table[task]
        return self.modality.open_task(self.folder, entry, self.preprocess) if entry.data else None

    def choose(self, recipe: Recipe) -> list[tuple[str, float]]:
        """Return the experts that a recipe asks for, see :func:`choose_experts`."""
        return choose_experts(self.manifest, recipe)

    def weights_path(self, model: str) -> Path:
        """Return the file of ``base``, a reference or an expert by name."""
        if model == "base":
            relative = self.manifest.backbone.weights
            if "." not in relative:
                raise self._not_here(relative)
            return self.path(relative)
        references = {reference.name: reference.weights for reference in self.manifest.references}
        if model in references:
            return self.path(references[model])
        return self.path(self.manifest.expert_table[model].weights)

    def _not_here(self, source: str) -> ZooError:
        name = self.manifest.name
        return ZooError(
            f"The zoo '{name}' names '{source}', whose files are not on this machine yet. Fetch them with "
            f"`python -m engine zoo fetch {name}` (add `--from FOLDER` where they lie in a folder), or in the lab."
        )

    def weights(self, model: str) -> Weights:
        """Return the encoder's tensors of ``base``, a reference or an expert.

        Raises:
            CheckpointError: the file cannot be used.
        """
        from ..weights import encoder_part, open_weights

        return encoder_part(open_weights(self.weights_path(model)))

    def digest(self, digest_file: Digest) -> str:
        """Return the identity of the whole zoo: its manifest and the content of every file it names."""
        models = ["base", *(r.name for r in self.manifest.references), *self.manifest.expert_table]
        files: list[Path | FileSet] = [self.weights_path(model) for model in models]
        files += [task.source.content() for task in self.data.values()]
        files += [self.path(self.manifest.heads)] if self.manifest.heads else []
        parts = [self.manifest.model_dump_json(), *(digest_file(path) for path in files)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class _Opened(Mapping[str, TaskData]):
    """Tasks' data by name, each opened once, when it is asked for."""

    def __init__(self, zoo: Zoo) -> None:
        self._zoo = zoo
        self._tasks = {task.name: task for task in zoo.manifest.tasks if task.data}
        self._open: dict[str, TaskData] = {}

    def __getitem__(self, name: str) -> TaskData:
        if name not in self._open:
            zoo = self._zoo
            self._open[name] = zoo.modality.open_task(zoo.folder, self._tasks[name], zoo.preprocess)
        return self._open[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tasks

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)


def choose_experts(manifest: Manifest, recipe: Recipe) -> list[tuple[str, float]]:
    """Return the experts that a recipe asks for, with their weights, in the recipe's order.

    Of several experts of one task, ``all`` takes the one that the manifest lists first.

    Raises:
        RecipeError: the zoo has none, or not one that the recipe names.
    """
    table = manifest.expert_table
    if not table:
        raise RecipeError(
            f"The zoo '{manifest.name}' has no experts yet, so there is nothing to merge. Train some with "
            "`zoo finetune`, or name them in zoo.yaml."
        )
    if recipe.experts == "all":
        return [(name, 1.0) for name in own_experts(manifest, table).values()]
    for expert in recipe.experts:
        if expert.name not in table:
            raise RecipeError(f"The zoo '{manifest.name}' has no expert '{expert.name}'. {nearest(expert.name, table)}")
    return [(expert.name, expert.weight) for expert in recipe.experts]


def own_experts(manifest: Manifest, names: Iterable[str]) -> dict[str, str]:
    """Return each task's own expert among those that are merged, by task: of several, the first.

    It is the one that states of a run are compared with; a merge may take more of a task, as Model Stock does.
    """
    return {task: several[0] for task, several in _by_task(manifest, names).items()}


def several_of_a_task(manifest: Manifest, names: Iterable[str]) -> dict[str, list[str]]:
    """Return the experts of every task that has several among those that are merged, its own first."""
    return {task: several for task, several in _by_task(manifest, names).items() if len(several) > 1}


def compared_with(task: str, several: Sequence[str]) -> str:
    """Say which of several experts of one task a run compares with."""
    return (
        f"{len(several)} experts of the task '{task}' are merged ({', '.join(several)}); the run compares its states "
        f"with the first, {several[0]}."
    )


def _by_task(manifest: Manifest, names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(manifest.expert_table[name].task, []).append(name)
    return found
