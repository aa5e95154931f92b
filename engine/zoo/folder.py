"""A zoo folder opened for work: its manifest, its files' digests, and weights that are read tensor by tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import RecipeError, ZooError, nearest
from ..manifest import ELSEWHERE, Manifest, locate_zoo, manifest_file, read_manifest, resolve_inside
from ..recipe import Recipe
from .data import TaskData, open_task

if TYPE_CHECKING:
    from ..types import Weights

Digest = Callable[[Path], str]


@dataclass(frozen=True)
class Zoo:
    """One zoo. Nothing is read before it is asked for."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, zoo: str) -> Zoo:
        """Open a bundled zoo by name, or any zoo by path.

        Raises:
            ZooError: there is none, or its manifest cannot be used.
        """
        place = locate_zoo(zoo)
        return cls(manifest_file(place).parent, read_manifest(place))

    def path(self, relative: str) -> Path:
        """Absolute path of a file that the manifest names; it must exist.

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
    def data(self) -> dict[str, TaskData]:
        """The data of every task that names some, headers checked."""
        return {task.name: open_task(self.folder, task) for task in self.manifest.tasks if task.data}

    def open_data(self, task: str) -> TaskData | None:
        """The data of one task, None where it names none; what is wrong with other tasks does not matter.

        Raises:
            DataError: the data cannot be used.
        """
        entry = self.manifest.task_table[task]
        return open_task(self.folder, entry) if entry.data else None

    def choose(self, recipe: Recipe) -> list[tuple[str, float]]:
        """The experts a recipe asks for, with their weights, in the recipe's order.

        Raises:
            RecipeError: an expert that the zoo does not have.
        """
        table = self.manifest.expert_table
        if not table:
            raise RecipeError(
                f"The zoo '{self.manifest.name}' has no experts yet. Train some with `zoo finetune`, or name them in "
                "zoo.yaml."
            )
        if recipe.experts == "all":
            return [(name, 1.0) for name in table]
        for expert in recipe.experts:
            if expert.name not in table:
                raise RecipeError(
                    f"The zoo '{self.manifest.name}' has no expert '{expert.name}'. {nearest(expert.name, table)}"
                )
        return [(expert.name, expert.weight) for expert in recipe.experts]

    def weights_path(self, model: str) -> Path:
        """File of ``base``, ``multitask`` or an expert by name."""
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
        """The ``visual.*`` tensors of ``base``, ``multitask`` or an expert.

        Raises:
            CheckpointError: the file cannot be used.
        """
        from ..weights import open_weights, visual

        return visual(open_weights(self.weights_path(model)))

    def digest(self, digest_file: Digest) -> str:
        """Identity of the whole zoo: its manifest and the content of every file it names."""
        models = ["base", *(r.name for r in self.manifest.references), *self.manifest.expert_table]
        files = [self.weights_path(model) for model in models]
        files += [task.path for task in self.data.values()]
        files += [self.path(self.manifest.heads)] if self.manifest.heads else []
        parts = [self.manifest.model_dump_json(), *(digest_file(path) for path in files)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
