"""One training loop for image encoders on frozen heads: the bundled zoo's builder and ``zoo finetune`` share it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import CheckpointError

CLIP_NORM = 1.0
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what AdamW remembers of a parameter


def scheduled(rate: float, step: int, steps: int, warmup: int) -> float:
    """Learning rate of a step counted from 0: linear warm-up, then cosine decay to zero."""
    return rate * min(1.0, (step + 1) / max(warmup, 1)) * 0.5 * (1 + math.cos(math.pi * step / steps))


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, rate: float) -> None:
    """One optimisation step at a learning rate, gradients clipped to norm 1."""
    optimizer.zero_grad()
    loss.backward()
    _move(optimizer, rate)


def _move(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Follow the gradients that are there, clipped to norm 1."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for group in optimizer.param_groups:
        group["lr"] = rate
    torch.nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
    optimizer.step()


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train."""

    steps: int
    learning_rate: float
    warmup: int
    weight_decay: float = 0.0
    label_smoothing: float = 0.0


class Trainer:
    """AdamW on every parameter of an image encoder; its heads stay as they are.

    Source: Ilharco et al., ICLR 2023, arXiv:2212.04089, Appendix B: the head is the zero-shot classifier, frozen.
    """

    def __init__(self, visual: nn.Module, heads: Sequence[Tensor], scale: Tensor | float, schedule: Schedule) -> None:
        """Bind an encoder.

        Args:
            visual: the encoder; trained in place.
            heads: frozen heads (classes, dim), one for each part of a batch.
            scale: what cosines are multiplied by, exp(logit scale).
            schedule: the settings.
        """
        self.visual = visual.train().requires_grad_(True)
        self.heads, self.scale, self.schedule = list(heads), scale, schedule
        self.step = 0
        self.parts = 1  # in which a batch of one head is computed, where all of it would not fit into memory
        parameters = list(visual.parameters())
        fused = parameters[0].device.type in ("cpu", "cuda")
        decay = schedule.weight_decay
        self.optimizer = torch.optim.AdamW(parameters, lr=schedule.learning_rate, weight_decay=decay, fused=fused)

    def advance(self, images: Tensor, labels: Sequence[Tensor]) -> Tensor:
        """Take one step on a batch.

        Args:
            images: prepared, (n, 3, h, w): equal parts for all heads, one after the other.
            labels: (n ÷ heads,) for each head.

        Returns:
            The loss before the step, a scalar without gradient: the mean over heads of the mean cross-entropy.
        """
        schedule, optimizer = self.schedule, self.optimizer
        optimizer.zero_grad()
        parts = [(images, labels)]
        if self.parts > 1 and len(self.heads) == 1:
            chunks = zip(images.chunk(self.parts), labels[0].chunk(self.parts), strict=True)
            parts = [(some, [own]) for some, own in chunks]
        total = torch.zeros((), device=images.device)
        for some, own in parts:
            loss = self._loss(some, own) if len(parts) == 1 else self._loss(some, own) * (len(some) / len(images))
            loss.backward()
            total = total + loss.detach()
        _move(optimizer, scheduled(schedule.learning_rate, self.step, schedule.steps, schedule.warmup))
        self.step += 1
        return total

    def _loss(self, images: Tensor, labels: Sequence[Tensor]) -> Tensor:
        """The mean over heads of the mean cross-entropy."""
        features = functional.normalize(self.visual(images), dim=-1).split(len(labels[0]))
        losses = [
            functional.cross_entropy(self.scale * part @ head.T, own, label_smoothing=self.schedule.label_smoothing)
            for part, head, own in zip(features, self.heads, labels, strict=True)
        ]
        return torch.stack(losses).mean()

    def state(self) -> dict[str, Tensor]:
        """Everything from which :meth:`restore` goes on as if nothing had happened, besides the number of steps."""
        found = {f"model.{name}": tensor.detach() for name, tensor in self.visual.state_dict().items()}
        for number, parameter in enumerate(self.visual.parameters()):
            for moment in MOMENTS:
                found[f"{moment}.{number}"] = self.optimizer.state[parameter][moment]
        return found

    def restore(self, state: Mapping[str, Tensor], step: int) -> None:
        """Go back to a state after a number of steps.

        Raises:
            CheckpointError: it is not a state of this encoder.
        """
        parameters = list(self.visual.parameters())
        model = {name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")}
        try:
            self.visual.load_state_dict(model)
            for number, parameter in enumerate(parameters):
                known = {moment: state[f"{moment}.{number}"].clone() for moment in MOMENTS}
                known = {name: t if name == "step" else t.to(parameter.device) for name, t in known.items()}
                if parameter.device.type == "cuda":
                    known["step"] = known["step"].to(parameter.device)  # where the fused AdamW keeps it
                self.optimizer.state[parameter] = known
        except (RuntimeError, KeyError) as error:
            raise CheckpointError("The training checkpoint does not belong to this encoder.") from error
        self.step = step
