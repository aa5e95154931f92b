"""The small transformer of the references: its encoder, tasks, trainer and what is compared of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...training import Setting, strategy_of
from ...weights import Memory
from ...zoo.encoders.backbone import PREFIX, load_encoder
from ...zoo.encoders.training import Schedule, Trainer
from ..measure import Found
from ..reference import PremergingReference, by_name

BATCHES = "batches"


def small_encoder(reference: PremergingReference, model: str, precision: str) -> nn.Module:
    """Return the transformer with a model's weights, in a precision."""
    weights = Memory(reference.inputs(f"toyvit_{model}"))
    return load_encoder(reference.config, weights).to(getattr(torch, precision))


def own_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by the encoder's own names."""
    return by_name({name: tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}, PREFIX)


def stored_names(tensors: Mapping[str, Tensor], before: str = "") -> dict[str, Tensor]:
    """Return an encoder's tensors by the names of files, with something in front."""
    return {f"{before}{PREFIX}{name}": tensor for name, tensor in tensors.items()}


def some_images(reference: PremergingReference, precision: str) -> Tensor:
    """Return the first eight images of each task."""
    data = reference.weights("toyvit_data", precision)
    return torch.cat([data[f"images{task}"][:8] for task in range(3)])


def task_batch(reference: PremergingReference, precision: str) -> tuple[Tensor, Tensor]:
    """Return the training images and labels of the first task."""
    data = reference.weights("toyvit_data", precision)
    return data["train_images0"], data["train_labels0"]


class Recorder(Trainer):
    """A trainer that remembers every loss whose gradient it takes."""

    losses: list[Tensor]

    def gradient(self, images: Tensor, labels: Any, soft: Tensor | None = None) -> Tensor:
        """Take the gradient and note the loss."""
        loss = super().gradient(images, labels, soft)
        self.__dict__.setdefault("losses", []).append(loss)
        return loss


def small_trainer(
    reference: PremergingReference,
    precision: str,
    method: str,
    params: Mapping[str, Any] | None = None,
    model: str = "base",
    schedule: Schedule | None = None,
) -> Recorder:
    """Return a trainer of the first task by a recipe."""
    data = reference.weights("toyvit_data", precision)
    encoder = small_encoder(reference, model, precision)
    head = data["head0"]
    strategy = strategy_of(method, params or {}, encoder, Setting(classes=len(head)))
    return Recorder(encoder, [head], data["scale"], schedule or Schedule(1, 1e-3, 0), strategy)


@dataclass(frozen=True)
class Training:
    """Trains as an entry of the index says, on its batches, and compares weights, losses and rates."""

    method: str
    params: Mapping[str, Any]

    def __call__(self, reference: PremergingReference, name: str, precision: str) -> Found:
        """Train, and compare."""
        want, stated = reference.output(name), reference.entries[name]["params"]
        schedule = Schedule(
            stated["steps"],
            stated["lr"],
            stated["warmup"],
            weight_decay=stated["weight_decay"],
            decay="after_warmup",
        )
        trainer = small_trainer(reference, precision, self.method, self.params, schedule=schedule)
        images, labels = task_batch(reference, precision)
        rows, losses, rates = want.pop(BATCHES), [], []
        for row in rows:
            rates.append(trainer.schedule.rate(trainer.step))
            losses.append(trainer.advance(images[row], [labels[row]]))
        got = stored_names(trainer.strategy.tensors())
        got |= {"losses": torch.stack(losses), "lr": torch.tensor(rates, dtype=torch.float64)}
        climbed = "losses_at_climbed"
        if climbed in want:
            got[climbed] = torch.stack(trainer.losses[1::2])
        return without_key_bias({key: got[key] for key in want}, want, precision)


def without_key_bias(got: Mapping[str, Tensor], want: Mapping[str, Tensor], precision: str) -> Found:
    """Return what was found; in float32 without the rows of every bias that belong to keys."""
    if precision == "float64":
        return Found(got, want)
    return Found(*({name: _rows(name, tensor) for name, tensor in side.items()} for side in (got, want)))


def _rows(name: str, tensor: Tensor) -> Tensor:
    if not name.endswith("in_proj_bias"):
        return tensor
    query, _, value = tensor.chunk(3)
    return torch.cat([query, value])
