"""Build the bundled zoo `mini8` from seeds: draw images, pretrain the base, fine-tune experts, keep a record."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from open_clip.model import CLIP

from .captions import partners
from .drawings.digits import ORDER_SEED, POOLS
from .files import NAME, halved, write_base, write_data, write_json, write_manifest, write_towers
from .finetune import FinetuneConfig, finetune
from .images import DATA_SEED, SIZES_IN, SIZES_OUT, Split, draw_task
from .model import VISUAL_PREFIX, configuration, new_model, text_heads
from .pretrain import PretrainConfig, Progress, pretrain
from .scores import Judge, Scores, State, averages, moved
from .tasks import IN_DOMAIN, TASKS

MULTITASK_STEPS = 1500
PACKAGES = ("torch", "open_clip_torch", "numpy", "pillow", "scikit-learn", "safetensors")
Data = dict[str, dict[str, Split]]


class Stopwatch:
    """Wall time of named parts, in seconds."""

    def __init__(self, progress: Progress) -> None:
        self.seconds: dict[str, float] = {}
        self.progress = progress

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time one part and say so."""
        self.progress(f"{name} …")
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 1)
        self.progress(f"{name}: {self.seconds[name]} s")


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: results then repeat exactly, and matrices this small gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def rounded(model: CLIP) -> CLIP:
    """Return a copy of the model with its weights rounded to float16, as the zoo stores them."""
    copy = new_model(seed=0)
    copy.load_state_dict({name: tensor.float() for name, tensor in halved(model.state_dict()).items()})
    return copy.eval()


def train_experts(base: CLIP, data: Data, seed: int, progress: Progress) -> dict[str, State]:
    """Return one expert per in-domain task, float32 `visual.*` tensors by task."""
    heads, experts = text_heads(base), {}
    for task in IN_DOMAIN:
        experts[task.name] = finetune(base, {task.name: data[task.name]["train"]}, heads, FinetuneConfig(seed=seed))
        progress(f"expert {task.name} trained (seed {seed})")
    return experts


def train_multitask(base: CLIP, data: Data, seed: int) -> State:
    """Return one visual tower trained on all in-domain tasks together."""
    splits = {task.name: data[task.name]["train"] for task in IN_DOMAIN}
    return finetune(base, splits, text_heads(base), FinetuneConfig(seed=seed, steps=MULTITASK_STEPS))


def accuracies(base: CLIP, data: Data, experts: Mapping[str, State], multitask: State | None) -> dict[str, Any]:
    """Return validation and test scores of base, experts, multitask and two plain merges, and their averages."""
    start = {name: tensor for name, tensor in base.state_dict().items() if name.startswith(VISUAL_PREFIX)}
    others: dict[str, State | None] = {
        "base": None,
        "weight_average": moved(start, experts, 1 / len(experts)),
        "task_arithmetic_0.3": moved(start, experts, 0.3),
    }
    if multitask is not None:
        others["multitask"] = multitask
    result: dict[str, Any] = {}
    for split in ("val", "test"):
        table: Scores = Judge(base, {task: splits[split] for task, splits in data.items()}).table(experts, others)
        result[split] = {"average": averages(table), "by_task": table}
    return result


def settings(config: PretrainConfig, expert_seed: int) -> dict[str, Any]:
    """Return everything that determines the zoo, for its build record."""
    return {
        "format": 1,
        "name": NAME,
        "model": configuration(),
        "seeds": {"data": DATA_SEED, "digits_order": ORDER_SEED, "pretrain": config.seed, "experts": expert_seed},
        "images": {"in_domain": SIZES_IN, "out_of_domain": SIZES_OUT, "digit_scans": POOLS},
        "pretrain": dataclasses.asdict(config),
        "experts": dataclasses.asdict(FinetuneConfig(seed=expert_seed)),
        "multitask": dataclasses.asdict(FinetuneConfig(seed=expert_seed, steps=MULTITASK_STEPS)),
        "caption_partners": {
            task.name: {
                task.classes[name]: task.classes[other] for name, other in enumerate(partners(task, config.seed))
            }
            for task in TASKS
        },
        "versions": {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
    }


def build(out: Path, *, expert_seed: int = 1, progress: Progress = print) -> None:
    """Build the whole zoo into a folder; under an hour on two cores.

    Args:
        out: the zoo folder, created if it is missing; files of an earlier build are replaced.
        expert_seed: seed of the shipped experts; the next seed is trained too, scored for the record, not kept.
        progress: receives one line of text per finished part.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "zoo.yaml").unlink(missing_ok=True)
    config, watch = PretrainConfig(), Stopwatch(progress)
    with one_thread():
        with watch.part("drawing images"):
            data = {task.name: draw_task(task) for task in TASKS}
            write_data(out, data)
        with watch.part("pretraining"):
            trained = pretrain({name: splits["pretrain"] for name, splits in data.items()}, config, progress)
        base = rounded(trained)
        write_base(out, base)
        with watch.part("experts"):
            experts = train_experts(base, data, expert_seed, progress)
        with watch.part("multitask"):
            multitask = train_multitask(base, data, expert_seed)
        write_towers(out, experts, multitask)
        with watch.part("second expert seed"):
            second = train_experts(base, data, expert_seed + 1, progress)
        with watch.part("scoring"):
            shipped = {name: halved(state) for name, state in experts.items()}
            scores = {
                "accuracy": accuracies(base, data, shipped, halved(multitask)),
                "accuracy_before_rounding": accuracies(trained, data, experts, multitask),
                "second_expert_seed": {"seed": expert_seed + 1, "accuracy": accuracies(base, data, second, None)},
            }
    write_json(out / "build.json", settings(config, expert_seed) | scores | {"wall_s": watch.seconds})
    write_manifest(out)
