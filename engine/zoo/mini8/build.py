"""Build the bundled zoo `mini8` from seeds: draw images, pretrain the base, fine-tune experts, keep a record."""

from __future__ import annotations

import dataclasses
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from open_clip.model import CLIP
from safetensors import SafetensorError
from safetensors.torch import load_file

from ...errors import EngineError
from ...store.outputs import new_folder
from .bundled import MINI8
from .captions import partners
from .drawings.digits import ORDER_SEED, POOLS
from .edition import Edition, FinetuneConfig
from .files import halved, write_base, write_data, write_json, write_manifest, write_towers
from .finetune import finetune
from .images import Split, draw_task
from .model import VISUAL_PREFIX, new_model, text_heads
from .parts import Parts, fingerprint
from .pretrain import pretrain
from .scores import Judge, Scores, State, averages, moved

PACKAGES = ("torch", "open_clip_torch", "numpy", "pillow", "scikit-learn", "safetensors")
Data = dict[str, dict[str, Split]]
Progress = Callable[[str], None]


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: results then repeat exactly, and matrices this small gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def rounded(edition: Edition, model: CLIP) -> CLIP:
    """Return a copy of the model with its weights rounded to float16, as the zoo stores them."""
    return loaded(edition, {name: tensor.float() for name, tensor in halved(model.state_dict()).items()})


def loaded(edition: Edition, state: State) -> CLIP:
    """Return the edition's model with these weights."""
    model = new_model(edition, seed=0)
    model.load_state_dict(state)
    return model.eval()


def read_tensors(path: Path) -> State:
    """Read a file of a finished zoo, as float32."""
    return {name: tensor.float() for name, tensor in load_file(path).items()}


def splits_of(data: Data, split: str) -> dict[str, Split]:
    """Return one split of the tasks that have it."""
    return {task: splits[split] for task, splits in data.items() if split in splits}


@dataclass(frozen=True)
class Workshop:
    """All that the parts of one zoo are made from: recipe, seeds and images."""

    edition: Edition
    data: Data
    parts: Parts
    progress: Progress
    base_seed: int
    expert_seed: int
    finished: Path | None = None  # a zoo of this recipe, whose base and multitask reference are taken as they are

    def base(self) -> CLIP:
        """Return the base as it was trained, in float32, or as a finished zoo has it."""
        edition, splits = self.edition, splits_of(self.data, "pretrain")
        if self.finished is not None:
            return loaded(edition, read_tensors(self.finished / "base.safetensors"))
        config = replace(edition.pretrain, seed=self.base_seed)
        made_of = (splits, edition.class_names, edition.configuration(), config)
        state = self.parts.take(
            f"base {self.base_seed}", made_of, lambda: pretrain(edition, splits, config, self.progress).state_dict()
        )
        model = new_model(edition, self.base_seed)
        model.load_state_dict(state)
        return model.eval()

    def tower(self, base: CLIP, name: str, tasks: list[str], config: FinetuneConfig) -> State:
        """Return a visual tower fine-tuned on some tasks together, float32 `visual.*` tensors."""
        splits = {task: self.data[task]["train"] for task in tasks}
        return self.parts.take(
            f"{name} {self.base_seed}.{config.seed}",
            (base.state_dict(), splits, config),
            lambda: finetune(base, splits, text_heads(self.edition, base, tasks), config),
        )

    def experts(self, base: CLIP) -> dict[str, State]:
        """Return one expert per in-domain task."""
        experts, usual = {}, self.edition.finetune
        for task in self.edition.in_domain:
            config = replace(usual, seed=self.expert_seed, steps=task.steps or usual.steps)
            experts[task.name] = self.tower(base, task.name, [task.name], config)
            self.progress(f"expert {task.name} trained (seed {self.expert_seed})")
        return experts

    def multitask(self, base: CLIP) -> State:
        """Return one visual tower trained on all in-domain tasks together, of one seed for all sets of experts."""
        names = [task.name for task in self.edition.in_domain]
        if self.finished is not None:
            return read_tensors(self.finished / "multitask.safetensors")
        return self.tower(base, "multitask", names, self.edition.joint)


def accuracies(
    edition: Edition, base: CLIP, data: Data, experts: Mapping[str, State], multitask: State
) -> dict[str, Any]:
    """Return validation and test scores of base, experts, multitask and two plain merges, and their averages."""
    start = {name: tensor for name, tensor in base.state_dict().items() if name.startswith(VISUAL_PREFIX)}
    others: dict[str, State | None] = {
        "base": None,
        "weight_average": moved(start, experts, 1 / len(experts)),
        "task_arithmetic_0.3": moved(start, experts, 0.3),
        "multitask": halved(multitask),
    }
    result: dict[str, Any] = {}
    for split in ("val", "test"):
        table: Scores = Judge(edition, base, splits_of(data, split)).table(experts, others)
        result[split] = {"average": averages(edition, table), "by_task": table}
    return result


def settings(edition: Edition, base_seed: int, expert_seed: int) -> dict[str, Any]:
    """Return everything that determines the zoo, for its build record."""
    sizes = edition.sizes
    return {
        "format": 1,
        "name": edition.name,
        "model": edition.configuration(),
        "seeds": {
            "data": edition.data_seed,
            "digits_order": ORDER_SEED,
            "pretrain": base_seed,
            "experts": expert_seed,
        },
        "images": {
            "in_domain": dict(sizes.in_domain),
            "out_of_domain": dict(sizes.out_of_domain),
            "shifted": dict(sizes.shifted),
            "seen_in_pretraining": {task.name: sizes.of(task).get("pretrain", 0) for task in edition.tasks},
            "colour_bits": edition.colour_bits,
            "digit_scans": POOLS,
        },
        "near": {task.name: task.near for task in edition.tasks if task.near},
        "analogy": edition.analogy,
        "pretrain": dataclasses.asdict(replace(edition.pretrain, seed=base_seed)),
        "experts": dataclasses.asdict(replace(edition.finetune, seed=expert_seed)),
        "steps_of_experts": {task.name: task.steps or edition.finetune.steps for task in edition.in_domain},
        "multitask": dataclasses.asdict(edition.joint),
        "caption_partners": {
            task.name: {
                task.classes[name]: task.classes[other] for name, other in enumerate(partners(edition, task, base_seed))
            }
            for task in edition.captioned
        },
        "versions": {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
    }


def build_zoo(out: Path, shop: Workshop, drawing: float) -> None:
    """Build one zoo's folder, which appears when it is whole.

    Raises:
        EngineError: the folder is there already and not empty, or cannot be written.
    """
    with new_folder(out) as folder:
        _write_zoo(folder, shop, drawing)


def _write_zoo(out: Path, shop: Workshop, drawing: float) -> None:
    edition, data, parts = shop.edition, shop.data, shop.parts
    write_data(out, edition, data)
    base = rounded(edition, shop.base())
    write_base(out, edition, base)
    experts, multitask = shop.experts(base), shop.multitask(base)
    write_towers(out, experts, multitask)
    started = time.monotonic()
    shipped = {name: halved(state) for name, state in experts.items()}
    scores = {"accuracy": accuracies(edition, base, data, shipped, multitask)}
    seeds = (f" {shop.base_seed}", f" {shop.base_seed}.{shop.expert_seed}")
    wall = {name: seconds for name, seconds in parts.seconds.items() if name.endswith(seeds)}
    wall = {"drawing images": round(drawing, 1), **wall, "scoring": round(time.monotonic() - started, 1)}
    digests = {
        "images": {task: fingerprint(*(splits.items())) for task, splits in data.items()},
        "base": fingerprint(base.state_dict()),
        "experts": {name: fingerprint(state) for name, state in shipped.items()},
    }
    record = settings(edition, shop.base_seed, shop.expert_seed) | scores
    write_json(out / "build.json", record | {"digests": digests, "wall_s": wall})
    write_manifest(out, edition)


def check_finished(folder: Path, edition: Edition) -> None:
    """Refuse a folder that is no zoo of this recipe, or whose base is not the one on its record.

    Raises:
        EngineError: what is there, and what was expected.
    """
    try:
        record = dict(json.loads((folder / "build.json").read_text("utf-8")))
        base = read_tensors(folder / "base.safetensors")
        (folder / "multitask.safetensors").stat()
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        said = f"{folder} is no whole zoo with a build record (build.json): {error}. Name one that this command built."
        raise EngineError(said) from error
    ours = json.loads(json.dumps(settings(edition, edition.pretrain.seed, edition.finetune.seed)))
    if odd := [part for part in ("model", "images", "pretrain", "multitask") if record.get(part) != ours[part]]:
        raise EngineError(
            f"{folder} was built by another recipe: its {', '.join(odd)} differ. Experts are trained on the base of a "
            "zoo of this version's recipe, as the bundled one is."
        )
    if fingerprint(loaded(edition, base).state_dict()) != record.get("digests", {}).get("base"):
        raise EngineError(
            f"base.safetensors in {folder} is not the base on its build record. Restore it, or build again."
        )


def build(
    out: Path,
    *,
    edition: Edition = MINI8,
    expert_seed: int = 1,
    second: bool = False,
    twin: bool = False,
    on: Path | None = None,
    parts: Path | None = None,
    progress: Progress = print,
) -> None:
    """Build the whole zoo into a folder; under an hour on two cores.

    Args:
        out: the zoo folder; it must not be there yet, or be empty.
        edition: the recipe.
        expert_seed: seed of the experts.
        second: build a second zoo beside it, `OUT-experts2`: the same base, experts of the next seed. The names of
            this zoo and of the twin end as their folders do.
        twin: build another one, `OUT-twin`: the base of another seed, and experts of it.
        on: a zoo built before, whose base and multitask reference are taken, so that experts alone are trained; the
            zoo's name ends as that of a second one does.
        parts: a folder in which trained parts are kept, so that an interrupted build goes on.
        progress: receives one line of text per finished part.

    Raises:
        EngineError: a folder is there already, or `on` is of another recipe.
    """
    seed = edition.pretrain.seed
    if on is not None:
        check_finished(on, edition)
        edition = replace(edition, name=f"{edition.name}-experts{expert_seed}") if expert_seed > 1 else edition
    wanted = [("", seed, expert_seed)]
    if second:
        wanted.append(("-experts2", seed, expert_seed + 1))
    if twin:
        wanted.append(("-twin", seed + 1, expert_seed))
    with one_thread():
        started = time.monotonic()
        progress("drawing images …")
        data = {task.name: draw_task(edition, task) for task in edition.tasks}
        drawing, kept = time.monotonic() - started, Parts(parts)
        for ending, base_seed, seed_of_experts in wanted:
            folder, named = out.with_name(f"{out.name}{ending}"), replace(edition, name=f"{edition.name}{ending}")
            build_zoo(folder, Workshop(named, data, kept, progress, base_seed, seed_of_experts, on), drawing)
            progress(f"built {folder}")
