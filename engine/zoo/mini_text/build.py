"""Build the zoo `mini_text` from seeds: write sentences, pretrain the base, fine-tune experts, keep a record."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor

from ...store.outputs import new_folder
from ..mini8.build import one_thread
from ..texts.bert import Bert
from ..texts.words import Words
from .files import NAME, halved, write_base, write_data, write_json, write_manifest, write_models
from .finetune import FinetuneConfig, finetune
from .model import State, configuration, filled, state_of
from .pretrain import PretrainConfig, Pretrained, Progress, pretrain
from .scores import Judge, Scores, averages, moved
from .sentences import DATA_SEED, SIZES, Split, partners, vocabulary, write_all
from .tasks import IN_DOMAIN, TASKS

MULTITASK_STEPS = 1200
PACKAGES = ("torch", "numpy", "safetensors")
Data = Mapping[str, Mapping[str, Split]]


class Stopwatch:
    """Wall time of named parts, in seconds."""

    def __init__(self, progress: Progress) -> None:
        self.seconds: dict[str, float] = {}
        self.progress = progress

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time one part and say so."""
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 1)
        self.progress(f"{name}: {self.seconds[name]} s")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings of every part; a smaller one makes a zoo of the same form in seconds."""

    pretrain: PretrainConfig = dataclasses.field(default_factory=PretrainConfig)
    experts: FinetuneConfig = dataclasses.field(default_factory=FinetuneConfig)
    multitask: FinetuneConfig = dataclasses.field(default_factory=lambda: FinetuneConfig(steps=MULTITASK_STEPS))
    sizes: Mapping[str, int] = dataclasses.field(default_factory=lambda: dict(SIZES))


def train_experts(
    base: Bert, heads: Mapping[str, Tensor], data: Data, words: Words, config: FinetuneConfig, progress: Progress
) -> dict[str, State]:
    """Return one expert per in-domain task, float32 `bert.*` tensors by task."""
    experts = {}
    for task in IN_DOMAIN:
        experts[task.name] = finetune(base, {task.name: data[task.name]["train"]}, words, heads, config)
        progress(f"expert {task.name} trained (seed {config.seed})")
    return experts


def accuracies(judges: Mapping[str, Judge], experts: Mapping[str, State], multitask: State) -> dict[str, Any]:
    """Return validation and test scores of base, experts, multitask and two plain merges, and their averages."""
    result: dict[str, Any] = {}
    for split, judge in judges.items():
        start = state_of(judge.base)
        others: dict[str, State | None] = {
            "base": None,
            "weight_average": moved(start, experts, 1 / len(experts)),
            "task_arithmetic_0.3": moved(start, experts, 0.3),
            "multitask": multitask,
        }
        table: Scores = judge.table(experts, others)
        result[split] = {"average": averages(table), "by_task": table}
    return result


def settings(recipe: Recipe, words: Words) -> dict[str, Any]:
    """Return everything that determines the zoo, for its build record."""
    return {
        "format": 1,
        "name": NAME,
        "model": configuration(len(words)),
        "seeds": {"data": DATA_SEED, "pretrain": recipe.pretrain.seed, "experts": recipe.experts.seed},
        "texts": dict(recipe.sizes),
        "pretrain": dataclasses.asdict(recipe.pretrain),
        "experts": dataclasses.asdict(recipe.experts),
        "multitask": dataclasses.asdict(recipe.multitask),
        "label_partners": {
            task.name: {
                task.classes[name]: task.classes[other]
                for name, other in enumerate(partners(task, recipe.pretrain.seed))
            }
            for task in TASKS
        },
        "versions": {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
    }


def build(out: Path, *, expert_seed: int = 1, recipe: Recipe | None = None, progress: Progress = print) -> None:
    """Build the whole zoo into a folder; under twenty minutes on two cores.

    Args:
        out: the zoo folder, which appears when it is whole; it must not be there yet, or be empty.
        expert_seed: seed of the experts.
        recipe: settings; the zoo's own by default.
        progress: receives one line of text per finished part.

    Raises:
        EngineError: the folder is there already and not empty, or cannot be written.
    """
    recipe = recipe or Recipe()
    recipe = dataclasses.replace(
        recipe,
        experts=dataclasses.replace(recipe.experts, seed=expert_seed),
        multitask=dataclasses.replace(recipe.multitask, seed=expert_seed),
    )
    with new_folder(out) as folder:
        _write_zoo(folder, recipe, progress)


def _write_zoo(out: Path, recipe: Recipe, progress: Progress) -> None:
    watch = Stopwatch(progress)
    with one_thread():
        with watch.part("writing sentences"):
            data = write_all(recipe.sizes)
            words = vocabulary(data)
            write_data(out, data)
        with watch.part("pretraining"):
            trained = pretrain(
                {name: part["pretrain"] for name, part in data.items()}, words, recipe.pretrain, progress
            )
        stored = halved(state_of(trained.model))
        base = filled(trained.model, stored)
        write_base(out, trained, stored, words)
        with watch.part("experts"):
            experts = train_experts(base, trained.heads, data, words, recipe.experts, progress)
        with watch.part("multitask"):
            splits = {task.name: data[task.name]["train"] for task in IN_DOMAIN}
            multitask = finetune(base, splits, words, trained.heads, recipe.multitask)
        write_models(out, experts, multitask)
        with watch.part("scoring"):
            judges = _judges(Pretrained(base, trained.heads), data, words)
            shipped = {name: halved(state) for name, state in experts.items()}
            scores = {"accuracy": accuracies(judges, shipped, halved(multitask))}
    write_json(out / "build.json", settings(recipe, words) | scores | {"wall_s": watch.seconds})
    write_manifest(out)


def _judges(base: Pretrained, data: Data, words: Words) -> dict[str, Judge]:
    return {
        split: Judge(base.model, base.heads, words, {task: splits[split] for task, splits in data.items()})
        for split in ("val", "test")
    }
