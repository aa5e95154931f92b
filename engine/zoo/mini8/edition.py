"""A recipe of the bundled zoo: its tasks, its sizes and every setting that its training takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from .tasks import TEMPLATES, Task
from .vocabulary import Vocabulary

SPLITS = ("pretrain", "train", "adapt", "val", "test")


@dataclass(frozen=True)
class CaptionNoise:
    """Probability of a wrong caption: floor + slope · hardness + a class's own offset in ± spread."""

    floor: float
    slope: float
    spread: float
    # Of the wrong captions, this share names the partner class, the rest any class of the task.
    partner_share: float = 0.85


# Stronger in domain, where experts are to have something to learn.
NOISE_IN = CaptionNoise(floor=0.15, slope=0.8, spread=0.15)
NOISE_OUT = CaptionNoise(floor=0.05, slope=0.6, spread=0.1)


@dataclass(frozen=True)
class PretrainConfig:
    """Settings of pretraining; noise is stronger in domain, where experts are to have something to learn."""

    seed: int = 1
    epochs: int = 9
    batch: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    warmup: int = 150
    shift: int = 2
    highest_scale: float = 50.0
    noise_in: CaptionNoise = NOISE_IN
    noise_out: CaptionNoise = NOISE_OUT


@dataclass(frozen=True)
class FinetuneConfig:
    """Settings of fine-tuning; `seed` orders the batches and their shifts."""

    seed: int = 1
    steps: int = 250
    batch: int = 64
    learning_rate: float = 5e-4
    warmup: int = 20
    shift: int = 2


@dataclass(frozen=True)
class Sizes:
    """Images of a split, by split, of tasks with an expert, without one, and of shifted ones."""

    in_domain: Mapping[str, int]
    out_of_domain: Mapping[str, int]
    shifted: Mapping[str, int] = field(default_factory=dict)

    def of(self, task: Task) -> dict[str, int]:
        """Return how many images each split of a task has; splits without images are left out."""
        sizes = self.in_domain if task.in_domain else self.shifted if task.shifted_from else self.out_of_domain
        seen = {} if task.seen is None else {"pretrain": task.seen}
        return {split: count for split, count in {**sizes, **seen}.items() if count}


@dataclass(frozen=True)
class Edition:
    """All that determines the images and the weights of the bundled zoo.

    `colour_bits` of every channel are kept; `multitask_steps` are those of the model that learns all tasks together.
    """

    name: str
    title: str
    description: str
    tasks: tuple[Task, ...]
    sizes: Sizes
    vision: Mapping[str, int | float]
    pretrain: PretrainConfig
    finetune: FinetuneConfig
    multitask_steps: int
    colour_bits: int
    analogy: tuple[str, str, str, str]
    data_seed: int = 1000

    @cached_property
    def in_domain(self) -> tuple[Task, ...]:
        """Return the tasks that get an expert."""
        return tuple(task for task in self.tasks if task.in_domain)

    @cached_property
    def captioned(self) -> tuple[Task, ...]:
        """Return the tasks that the base sees; a shifted task brings no names of its own."""
        return tuple(task for task in self.tasks if task.shifted_from is None)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Return the names of all classes that captions use."""
        return tuple(name for task in self.captioned for name in task.classes)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Return the words of all prompts."""
        return Vocabulary([template.format(name) for template in TEMPLATES for name in self.class_names])

    @property
    def joint(self) -> FinetuneConfig:
        """Return the settings of training on all tasks together."""
        return replace(self.finetune, steps=self.multitask_steps)

    def index(self, task: Task) -> int:
        """Return a task's number, from which its random streams are seeded."""
        return self.tasks.index(task)

    def configuration(self) -> dict[str, Any]:
        """Return the open_clip model configuration that config.json holds."""
        text = {"context_length": self.vocabulary.context, "vocab_size": self.vocabulary.size}
        return {
            "embed_dim": 128,
            "quick_gelu": False,
            "vision_cfg": {"image_size": 32, "patch_size": 8, **self.vision},
            "text_cfg": {**text, "width": 128, "heads": 4, "layers": 2},
        }
