"""One expert's training: batches that depend on the step's number only, checkpoints, a curve."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...catalog import FINE_TUNING
from ...errors import Cancelled, CheckpointError, EngineError
from ...features import choose_device, encode, ran_out
from ...manifest import STANDARD
from ...mounts import here
from ...preparation import Preparation
from ...training import Setting, strategy_of
from ...training.setting import spread
from ...weights import Memory, SafetensorsFile, write_weights
from ...zoo.encoders.backbone import load_encoder, prefix_of, to_tensor
from ...zoo.encoders.training import Schedule, Teaching, Trainer
from ...zoo.folder import Zoo
from ...zoo.images.splits import hold_out
from ...zoo.making.adopt import EXPERT, FACTORS
from ...zoo.modalities import of_config
from ..sources import Sources
from ..steps import StepParams, apart
from .teacher import TeacherParams, teacher_logits

if TYPE_CHECKING:
    from pathlib import Path

    from ..tools import StepTools

CHECKPOINT_SECONDS = 30.0
MEASURED = 10  # points of the curve after the first
METADATA_KEY = "mergelens"
VERSION = 2  # of the training of one expert


class FinetuneParams(StepParams):
    """Parameters of the training of one expert."""

    task: str
    base: str  # digest
    data: str  # digest of the task's samples
    heads: str  # digest, or the key of what builds them
    architecture: dict[str, Any]
    preprocess: Preparation
    config: dict[str, Any]  # every setting, see :meth:`FinetuneConfig.resolved`
    validation_share: float
    joint: dict[str, str] | None = None  # task → digest of its samples, where one model learns several tasks
    imitated: dict[str, tuple[str, str]] | None = None  # task → name and digest of the expert that is imitated
    others: dict[str, str] | None = None  # digests of other tasks' samples, for recipes that look at them
    teacher: TeacherParams | None = None
    wording: dict[str, Any] | None = None  # of what the teacher reads, where its task says it in other words
    teacher_zoo: str = apart("")
    start: str | None = None  # the name of the zoo whose base it starts from, where it is another
    start_zoo: str = apart("")
    checkpoint_every: int | None = apart(None)
    sources: Sources = apart()


def recipe_of(config: Mapping[str, Any]) -> str:
    """Return the recipe of resolved settings, which name it where it is not the standard one."""
    return str(config.get("method", STANDARD))


def work(params: FinetuneParams) -> float:
    """Return the relative cost of a training."""
    return 8.0 * FINE_TUNING[recipe_of(params.config)].cost


@dataclass(frozen=True)
class Lesson:
    """One task's part of a training: samples and labels to train on, and those to be watched on."""

    task: str
    rows: np.ndarray  # of the training samples, (n,)
    samples: Any  # as task data give them, read when they are indexed
    labels: Tensor  # (n,)
    val_samples: Any
    val_labels: Tensor
    split: str  # where the latter are from

    @classmethod
    def of(cls, zoo: Zoo, task: str, params: FinetuneParams) -> Lesson:
        """Read a task's samples; those to be watched on are its own validation samples, else held out."""
        data = zoo.data[task]
        train, held_out = hold_out(data, params.validation_share)
        split = "train" if held_out is not None else "val"
        rows = data.usable("val") if held_out is None else held_out
        return cls(
            task,
            train,
            data.samples("train", train, params.preprocess),
            torch.as_tensor(data.labels("train")[train]),
            data.samples(split, rows, params.preprocess),
            torch.as_tensor(data.labels(split)[rows]),
            split,
        )

    def rows_at(self, step: int, size: int, seed: int) -> np.ndarray:
        """Return which of the samples are in a step's batch; it depends on the seed and the step's number only."""
        places, count = np.arange(step * size, (step + 1) * size), len(self.samples)
        return np.concatenate(
            [self._shuffle(e, seed)[places[places // count == e] % count] for e in np.unique(places // count)]
        )

    def _shuffle(self, epoch: int, seed: int) -> np.ndarray:
        return np.random.default_rng([seed, _number(self.task), 0, int(epoch)]).permutation(len(self.samples))


class TrainingRun:
    """A training that can be killed at any moment and goes on from its last checkpoint as if nothing had happened.

    Which samples are in a batch and how they are varied depends on the seed and the number of the step, never on what
    was drawn before, so a checkpoint needs no state of a generator.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ("step", "loss", "validation_accuracy")

    def __init__(self, params: FinetuneParams, tools: StepTools) -> None:
        """Read samples, heads and base, and the checkpoint where there is one."""
        self.task, self.config, self.tools = params.task, params.config, tools
        self.device = choose_device() if tools.device == "cpu" else torch.device(tools.device)
        zoo = params.sources.open()
        self.preprocess = params.preprocess
        tasks = tuple(params.joint or (self.task,))
        self.modality = of_config(params.architecture)
        self.prefix = prefix_of(params.architecture)
        heads = zoo.heads(list(tasks))[0]
        self.lessons = [Lesson.of(zoo, task, params) for task in tasks]
        self.counts = {
            "train": sum(len(lesson.samples) for lesson in self.lessons),
            "validation": sum(len(lesson.val_samples) for lesson in self.lessons),
            "validation_from": ", ".join(dict.fromkeys(lesson.split for lesson in self.lessons)),
        }
        self.heads = [heads[task].to(self.device) for task in tasks]
        start = Zoo.open(here(params.start_zoo)) if params.start_zoo else zoo
        encoder = load_encoder(params.architecture, start.weights("base")).to(self.device)
        names = ("steps", "learning_rate", "warmup", "weight_decay", "label_smoothing", "decay")
        schedule = Schedule(**{name: self.config[name] for name in names if name in self.config})
        setting = Setting(
            self.config["seed"],
            max(len(head.weight) for head in self.heads),
            lambda count: self._some(zoo, params, params.others or {}, count),
            lambda count: self._some(zoo, params, [self.task], count),
            self.modality.layout_of(params.architecture),
            self.modality.many,
            heads=len(self.heads),
            width=self.modality.width(params.architecture),
        )
        strategy = strategy_of(recipe_of(self.config), self.config.get("params", {}), encoder, setting)
        self.experts = [
            load_encoder(params.architecture, zoo.weights(params.imitated[task][0])).to(self.device)
            for task in (tasks if params.imitated else ())
        ]
        taught = params.teacher
        self.soft: Tensor | None = None
        if taught is not None:
            own = self.lessons[0]
            given = (zoo.data[self.task], own.rows, self.device, lambda *_: tools.check())
            self.soft = teacher_logits(taught, here(params.teacher_zoo), *given)
            right = self.soft.argmax(dim=1).cpu() == own.labels
            self.counts["teacher"] = round(100 * float(right.double().mean()), 2)
        teaching = None if taught is None else Teaching(taught.temperature, taught.weight)
        rows, affine = [head.weight for head in self.heads], [head.affine for head in self.heads]
        self.trainer = Trainer(encoder, rows, heads[tasks[0]].scale, schedule, strategy, teaching, affine)
        self.every = params.checkpoint_every
        self.key = hashlib.sha256(
            json.dumps([VERSION, params.identity(), self.device.type], sort_keys=True).encode()
        ).hexdigest()
        self.checkpoint: Path = tools.store.root / "checkpoints" / f"{self.key}.safetensors"
        self.curve: list[list[float | None]] = []
        self.seconds = 0.0
        self._losses: list[Tensor] = []  # since the last point of the curve
        self._restore()

    def train(self) -> None:
        """Train to the last step; the last iterate is what counts, nothing is chosen on the way.

        Raises:
            EngineError: the loss is not finite.
            Cancelled: nobody wants the expert any more; the checkpoint stays.
        """
        steps = self.config["steps"]
        points = {round(steps * part / MEASURED) for part in range(1, MEASURED + 1)} | {steps}
        self._began, self._saved = time.monotonic(), time.monotonic()
        if not self.curve:
            self._measure(None)
        while self.trainer.step < steps:
            self._losses.append(self._advance())
            if self.trainer.step in points:
                self._measure(self._mean_loss())
            self._maybe_save()
            try:
                self.tools.progress(self.trainer.step / steps, f"step {self.trainer.step:,} of {steps:,}")
            except Cancelled:
                self._save()
                raise
        self.seconds += time.monotonic() - self._began

    def write_expert(self, folder: Path) -> None:
        """Write the encoder's tensors under their canonical names, and factors where the recipe leaves some.

        Raises:
            EngineError: a weight is not finite, as after a last step that went too far.
        """
        strategy = self.trainer.strategy
        tensors = {self.prefix + name: tensor.cpu() for name, tensor in strategy.tensors().items()}
        dtype = getattr(torch, self.config["dtype"])
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not tensor.to(dtype).isfinite().all():
                raise EngineError(
                    f"Training the expert of '{self.task}' diverged: {name} is not finite as {self.config['dtype']} "
                    "after the last step. Lower the learning rate."
                )
        metadata = {"task": self.task, "trained_from": "zoo finetune"}
        write_weights(folder / EXPERT, Memory(tensors), dtype, metadata=metadata)
        factors = {self.prefix + name: tensor.cpu() for name, tensor in strategy.factors().items()}
        if factors:
            write_weights(folder / FACTORS, Memory(factors), metadata=metadata)

    def _some(self, zoo: Zoo, params: FinetuneParams, tasks: Iterable[str], count: int) -> dict[str, Tensor]:
        """Return at most so many training samples of each of some tasks, evenly spread, prepared."""
        found = {}
        for task in tasks:
            data = zoo.data[task]
            rows, _ = hold_out(data, params.validation_share)
            samples = data.samples("train", rows[spread(count, len(rows))], self.preprocess)
            found[task] = to_tensor(samples, self.preprocess).to(self.device)
        return found

    def forget_checkpoint(self) -> None:
        """Remove the checkpoint of an expert that is written."""
        self.checkpoint.unlink(missing_ok=True)

    def _advance(self) -> Tensor:
        """Take one step; where memory runs out, compute the batch in smaller parts from then on.

        Raises:
            EngineError: not even one sample fits.
        """
        samples, labels, soft = self._batch(self.trainer.step)
        while True:
            try:
                return self.trainer.advance(samples, labels, soft)
            except (RuntimeError, MemoryError) as error:
                if not ran_out(error):
                    raise
                if self.trainer.parts >= len(samples):
                    raise EngineError(
                        f"Training on a single {self.modality.one} ran out of memory on {self.device.type}. Close "
                        "other programs that use it, or choose a smaller architecture."
                    ) from error
            self.trainer.parts *= 2
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            size = -(-len(samples) // self.trainer.parts)
            self.tools.log(
                f"'{self.task}', step {self.trainer.step:,}: memory ran out; batches of {len(samples)} "
                f"{self.modality.many} are computed {size} at a time, which gives the same gradients up to rounding."
            )

    def _batch(self, step: int) -> tuple[Tensor, list[Tensor], Tensor | None]:
        """Return the samples and labels of a step, with a teacher's logits or experts' features.

        They are consecutive parts of one shuffle after another. Of several tasks each gives as many samples as the
        others, and orders them by itself.
        """
        size, soft = self.config["batch_size"] // len(self.lessons), None
        found, labels, wanted = [], [], []
        seed = self.config["after"] if step >= self.config.get("part", step + 1) else self.config["seed"]
        for place, lesson in enumerate(self.lessons):
            rows = lesson.rows_at(step, size, seed)
            samples = to_tensor(lesson.samples[rows], self.preprocess)
            rng = np.random.default_rng([seed, _number(lesson.task), 1, step])
            found.append(self.modality.augmented(samples, self.config["augmentation"], rng).to(self.device))
            labels.append(lesson.labels[torch.as_tensor(rows)].to(self.device))
            if self.soft is not None:
                soft = self.soft[torch.as_tensor(rows, device=self.device)]
            if self.experts:
                with torch.no_grad():
                    wanted.append(self.experts[place](found[-1]))
        soft = torch.cat(wanted) if wanted else soft
        return found[0] if len(found) == 1 else torch.cat(found), labels, soft

    def _measure(self, loss: float | None) -> None:
        """Add a point to the curve: accuracy in percent on validation samples, of several tasks their mean."""
        model, shares = self.trainer.model.eval(), []
        for lesson, head in zip(self.lessons, self.heads, strict=True):
            features = encode(
                model, lesson.val_samples, self.preprocess, self.device, lambda fraction, message="": None
            )
            right = head.to(torch.device("cpu")).classes(features) == lesson.val_labels
            shares.append(100 * float(right.float().mean()))
        model.train()
        self.curve.append([self.trainer.step, loss, round(sum(shares) / len(shares), 2)])
        self.tools.metrics({self.task: {"columns": list(self.COLUMNS), "curve": self.curve}})

    def _mean_loss(self) -> float:
        loss = float(torch.stack(self._losses).mean())
        self._losses.clear()
        if not np.isfinite(loss):
            raise EngineError(
                f"Training the expert of '{self.task}' diverged before step {self.trainer.step}: the loss is {loss}. "
                "Lower the learning rate."
            )
        return loss

    def _maybe_save(self) -> None:
        now = time.monotonic()
        due = now - self._saved >= CHECKPOINT_SECONDS if self.every is None else self.trainer.step % self.every == 0
        if due and self.trainer.step < self.config["steps"]:
            self._save()
            self._saved = now

    def _save(self) -> None:
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        state = self.trainer.state() | {"losses": torch.stack(self._losses).cpu() if self._losses else torch.zeros(0)}
        seconds = self.seconds + time.monotonic() - self._began
        metadata = {"key": self.key, "step": self.trainer.step, "curve": self.curve, "seconds": seconds}
        tensors = {name: tensor.cpu() for name, tensor in state.items()}
        write_weights(self.checkpoint, Memory(tensors), metadata={METADATA_KEY: json.dumps(metadata)})

    def _restore(self) -> None:
        """Go on from the checkpoint; one that is damaged or of another training is as good as none."""
        if not self.checkpoint.is_file():
            return
        try:
            file = SafetensorsFile(self.checkpoint)
            known = json.loads(file.metadata.get(METADATA_KEY, "{}"))
            if known.get("key") != self.key:
                return
            state = {name: file.tensor(name) for name in file.names}
            losses = state.pop("losses").to(self.device)
            curve, seconds = known["curve"], float(known["seconds"])
            self.trainer.restore(state, int(known["step"]))
        except (CheckpointError, ValueError, KeyError, AttributeError) as error:
            why = str(error).rstrip(".")
            self.tools.log(f"The checkpoint of '{self.task}' cannot be read ({why}); training starts anew.")
            return
        self._losses, self.curve, self.seconds = list(losses), curve, seconds
        self.tools.log(f"'{self.task}' goes on from step {self.trainer.step:,}.")


def _number(task: str) -> int:
    """Return a number of its own for every task, so that tasks draw differently."""
    return int.from_bytes(hashlib.sha256(task.encode()).digest()[:8], "little")
