"""One training loop for encoders on frozen heads: the builders of bundled zoos and ``zoo finetune`` share it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import CheckpointError
from ...types import Affine

CLIP_NORM = 1.0
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what AdamW remembers of a parameter


def scheduled(rate: float, step: int, steps: int, warmup: int) -> float:
    """Return learning rate of a step counted from 0: linear warm-up, then cosine decay to zero."""
    return rate * min(1.0, (step + 1) / max(warmup, 1)) * 0.5 * (1 + math.cos(math.pi * step / steps))


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, rate: float) -> None:
    """Take one optimisation step at a learning rate, gradients clipped to norm 1."""
    optimizer.zero_grad()
    loss.backward()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for group in optimizer.param_groups:
        group["lr"] = rate
    torch.nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
    optimizer.step()


Decay = Literal["whole", "after_warmup"]


@dataclass(frozen=True)
class Schedule:
    """Length and learning rates of a training."""

    steps: int
    learning_rate: float
    warmup: int
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    decay: Decay = "whole"  # the cosine spans all steps, or those after the warm-up

    def rate(self, step: int) -> float:
        """Return learning rate of a step counted from 0.

        Source: with ``decay: after_warmup`` that of Ilharco et al., ICLR 2023, arXiv:2212.04089, in their code.
        """
        if self.decay == "whole":
            return scheduled(self.learning_rate, step, self.steps, self.warmup)
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / (self.steps - self.warmup)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class Teaching:
    """The weight of a teacher's predictions beside the labels.

    Source: Hinton et al., 2015, arXiv:1503.02531, §2: the divergence of softened predictions, times T².
    """

    temperature: float
    weight: float

    def loss(self, logits: Tensor, soft: Tensor, hard: Tensor) -> Tensor:
        """Return (1 − w) · ``hard`` + w T² KL(teacher ‖ student), for logits (n, classes) of both."""
        student, teacher = (functional.log_softmax(part / self.temperature, dim=-1) for part in (logits, soft))
        divergence = functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
        return (1 - self.weight) * hard + self.weight * self.temperature**2 * divergence


class Step(Protocol):
    """One batch, as a rule sees it."""

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return the tensors that are trained, by name."""

    def clear(self) -> None:
        """Forget all gradients."""

    def gradient(self) -> Tensor:
        """Add the gradient of the whole batch's loss to those that are there; returns the loss, a scalar."""

    @property
    def accuracy(self) -> float:
        """Return the share of the batch that was predicted rightly when its gradient was taken last."""

    def clip(self) -> None:
        """Shorten the gradients to norm 1 where they are longer."""

    def move(self, clip: bool = True) -> None:
        """Let the optimiser take a step along the gradients that are there."""


Rule = Callable[[Step], Tensor]


def follow(step: Step) -> Tensor:
    """Take one step down the gradient of a batch and return the loss before it."""
    step.clear()
    loss = step.gradient()
    step.move()
    return loss


@dataclass(frozen=True)
class Imitation:
    """Loss on features beside the labels', with a map for each head that is trained along and left behind."""

    maps: nn.ModuleList
    optimizer: torch.optim.Optimizer  # of the maps; its rate stays
    distance: Callable[[Tensor, Tensor], Tensor]  # a scalar, of mapped and wanted features (n, dim) of one head
    weight: float

    def loss(self, features: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor:
        """Return the weighted mean over heads of the distance between mapped and wanted features (n, dim)."""
        parts = zip(self.maps, features, wanted, strict=True)
        return self.weight * torch.stack([self.distance(one(own), other) for one, own, other in parts]).mean()


@dataclass(frozen=True)
class Strategy:
    """A recipe of fine-tuning: what is computed, what is trained, and how a gradient becomes a step.

    ``model`` maps prepared samples (n, …) onto features (n, dim); its parameters that require gradients are trained.
    ``tensors`` gives the trained encoder as ordinary weights by the encoder's names, ``factors`` what else the recipe
    leaves. ``keeps_gradients`` says that gradients of one step count in the next. With ``imitation`` every batch comes
    with the features that are to be imitated.
    """

    model: nn.Module
    tensors: Callable[[], Mapping[str, Tensor]]
    rule: Rule = follow
    factors: Callable[[], Mapping[str, Tensor]] = dict
    keeps_gradients: bool = False
    imitation: Imitation | None = None


def whole_encoder(encoder: nn.Module, rule: Rule = follow) -> Strategy:
    """Train all parameters of an encoder."""
    encoder.requires_grad_(True)
    return Strategy(encoder, encoder.state_dict, rule)


class Trainer:
    """AdamW on an encoder, all of it or what a recipe trains; its heads stay as they are.

    Source: Ilharco et al., ICLR 2023, arXiv:2212.04089, Appendix B: the head is the zero-shot classifier, frozen.
    """

    def __init__(
        self,
        encoder: nn.Module,
        heads: Sequence[Tensor],
        scale: Tensor | float,
        schedule: Schedule,
        strategy: Strategy | None = None,
        teaching: Teaching | None = None,
        affine: Sequence[Affine | None] = (),
    ) -> None:
        """Bind an encoder.

        Args:
            encoder: trained in place.
            heads: frozen heads (classes, dim), one for each part of a batch.
            scale: what cosines are multiplied by, exp(logit scale).
            schedule: the settings.
            strategy: of the recipe, made from this encoder; standard fine-tuning by default.
            teaching: how a teacher counts, whose logits then come with every batch; for a single head.
            affine: what each head has beyond its rows where heads are fine-tuned classifiers; they take features as
                they are, and no scale.
        """
        self.encoder = encoder
        self.strategy, self.teaching = strategy or whole_encoder(encoder), teaching
        self.affine = list(affine) or [None] * len(heads)
        self.model = self.strategy.model.train()
        self.heads, self.scale, self.schedule = list(heads), scale, schedule
        self.step = 0
        self.right: Tensor | float = 0.0  # samples of the last batch that were predicted rightly
        self.parts = 1  # in which a batch is computed, where all of it would not fit into memory
        self.trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        parameters = list(self.trained.values())
        fused = parameters[0].device.type in ("cpu", "cuda")
        decay = schedule.weight_decay
        self.optimizer = torch.optim.AdamW(parameters, lr=schedule.learning_rate, weight_decay=decay, fused=fused)
        imitation = self.strategy.imitation
        self.along = list(imitation.maps.parameters()) if imitation else []

    def advance(self, samples: Tensor, labels: Sequence[Tensor], soft: Tensor | None = None) -> Tensor:
        """Take one step on a batch.

        A step that fails, such as for lack of memory, leaves weights and gradients as they were before it.

        Args:
            samples: prepared, (n, …): equal parts for all heads, one after the other.
            labels: (n ÷ heads,) for each head.
            soft: logits (n, classes) of a teacher, or features (n, dim) that are imitated.

        Returns:
            The loss before the step, a scalar without gradient: the mean over heads of the mean cross-entropy.
        """
        keeps, parameters = self.strategy.keeps_gradients, [*self.trained.values(), *self.along]
        kept = [p.grad.clone() if keeps and p.grad is not None else None for p in parameters]
        try:
            loss = self.strategy.rule(_Batch(self, samples, labels, soft))
        except BaseException:
            for parameter, gradient in zip(parameters, kept, strict=True):
                parameter.grad = gradient
            raise
        self.step += 1
        return loss

    def gradient(self, samples: Tensor, labels: Sequence[Tensor], soft: Tensor | None = None) -> Tensor:
        """Add the gradient of a batch's loss to those that are there, in parts where memory needs it.

        Returns:
            The loss, a scalar without gradient.
        """
        parts = [(samples, labels, soft)] if self.parts == 1 else self._in_parts(samples, labels, soft)
        total = torch.zeros((), device=samples.device)
        self.right = 0.0
        for some, *rest in parts:
            loss = self._loss(some, *rest) if len(parts) == 1 else self._loss(some, *rest) * (len(some) / len(samples))
            loss.backward()
            total = total + loss.detach()
        return total

    def _in_parts(
        self, samples: Tensor, labels: Sequence[Tensor], soft: Tensor | None
    ) -> list[tuple[Tensor, Sequence[Tensor], Tensor | None]]:
        """Cut a batch into parts that each hold as many samples of every head."""
        cut = [part.chunk(self.parts) for part in samples.split(len(labels[0]))]
        known = [part.chunk(self.parts) for part in labels]
        taught = [] if soft is None else [part.chunk(self.parts) for part in soft.split(len(labels[0]))]
        return [
            (
                torch.cat([part[place] for part in cut]),
                [part[place] for part in known],
                torch.cat([part[place] for part in taught]) if taught else None,
            )
            for place in range(len(cut[0]))
        ]

    def _loss(self, samples: Tensor, labels: Sequence[Tensor], soft: Tensor | None = None) -> Tensor:
        """Return the mean over heads of the mean cross-entropy, with what a teacher says or is imitated."""
        features = self.model(samples)
        logits = self._logits(features, len(labels[0]))
        for part, own in zip(logits, labels, strict=True):
            self.right = self.right + (part.detach().argmax(dim=-1) == own).sum()
        smoothing = self.schedule.label_smoothing
        losses = [
            functional.cross_entropy(part, own, label_smoothing=smoothing)
            for part, own in zip(logits, labels, strict=True)
        ]
        hard = torch.stack(losses).mean()
        if self.strategy.imitation is not None and soft is not None:
            size = len(labels[0])
            return hard + self.strategy.imitation.loss(features.split(size), soft.split(size))
        return hard if soft is None or self.teaching is None else self.teaching.loss(logits[0], soft, hard)

    def _logits(self, features: Tensor, count: int) -> list[Tensor]:
        """Return scores (count, classes) of each head on its part of un-normalised features (n, dim)."""
        plain, unit = features.split(count), functional.normalize(features, dim=-1).split(count)
        return [
            self.scale * unit[place] @ head.T if affine is None else affine.logits(plain[place], head)
            for place, (head, affine) in enumerate(zip(self.heads, self.affine, strict=True))
        ]

    def state(self) -> dict[str, Tensor]:
        """Return everything but the step's number from which :meth:`restore` goes on as if nothing had happened."""
        found = {f"model.{name}": tensor.detach() for name, tensor in self.model.state_dict().items()}
        for start, optimizer, parameters in self.optimised():
            for number, parameter in enumerate(parameters):
                for moment in MOMENTS if parameter in optimizer.state else ():
                    found[f"{start}{moment}.{number}"] = optimizer.state[parameter][moment]
        for number, parameter in enumerate(self.trained.values()):
            if self.strategy.keeps_gradients and parameter.grad is not None:
                found[f"gradient.{number}"] = parameter.grad
        found |= {f"along.{number}": parameter.detach() for number, parameter in enumerate(self.along)}
        return found

    def optimised(self) -> list[tuple[str, torch.optim.Optimizer, list[nn.Parameter]]]:
        """Return optimisers with their parameters, and what names of their states begin with."""
        found: list[tuple[str, torch.optim.Optimizer, list[nn.Parameter]]] = [
            ("", self.optimizer, list(self.trained.values()))
        ]
        if self.strategy.imitation is not None:
            found.append(("along.", self.strategy.imitation.optimizer, self.along))
        return found

    def restore(self, state: Mapping[str, Tensor], step: int) -> None:
        """Go back to a state after a number of steps.

        Raises:
            CheckpointError: it is not a state of this encoder, which then stays as it is.
        """
        model = {name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")}
        shapes = {name: tensor.shape for name, tensor in state.items()}
        wanted = {f"model.{name}": tensor.shape for name, tensor in self.model.state_dict().items()}
        odd = len(wanted) != len(model)
        wanted |= {f"along.{number}": parameter.shape for number, parameter in enumerate(self.along)}
        kept = [(f"gradient.{number}", parameter) for number, parameter in enumerate(self.trained.values())]
        wanted |= {name: parameter.shape for name, parameter in kept if name in state}
        if odd or any(shapes.get(name) != shape for name, shape in wanted.items()):
            raise CheckpointError("The training checkpoint does not belong to this encoder.")
        remembered = [
            (optimizer, parameter, _known(state, start, number, parameter))
            for start, optimizer, parameters in self.optimised()
            for number, parameter in enumerate(parameters)
            if any(f"{start}{moment}.{number}" in state for moment in MOMENTS)  # else it was never moved
        ]
        self.model.load_state_dict(model, strict=False)  # a model may leave out what repeats its tensors
        with torch.no_grad():
            for number, parameter in enumerate(self.along):
                parameter.copy_(state[f"along.{number}"])
        for name, parameter in kept:
            if name in state:
                parameter.grad = state[name].to(parameter.device, copy=True)
        for optimizer, parameter, known in remembered:
            optimizer.state[parameter] = known
        self.step = step


def _known(state: Mapping[str, Tensor], start: str, number: int, parameter: nn.Parameter) -> dict[str, Tensor]:
    """Return what an optimiser remembered of a parameter.

    Raises:
        CheckpointError: a part of it is missing, or of another shape.
    """
    names = {moment: f"{start}{moment}.{number}" for moment in MOMENTS}
    for moment, name in names.items():
        if name not in state or (moment != "step" and state[name].shape != parameter.shape):
            raise CheckpointError(f"The training checkpoint has no {name} that fits.")
    known = {moment: state[name].clone() for moment, name in names.items()}
    known = {name: t if name == "step" else t.to(parameter.device) for name, t in known.items()}
    if parameter.device.type == "cuda":
        known["step"] = known["step"].to(parameter.device)  # where the fused optimisers keep it
    return known


@dataclass(frozen=True)
class _Batch:
    """A step of a trainer on one batch."""

    trainer: Trainer
    samples: Tensor
    labels: Sequence[Tensor]
    soft: Tensor | None = None

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return the tensors that are trained, by name."""
        return self.trainer.trained

    def clear(self) -> None:
        """Forget all gradients."""
        for _, optimizer, _ in self.trainer.optimised():
            optimizer.zero_grad()

    def gradient(self) -> Tensor:
        """Add the gradient of the whole batch's loss; returns the loss."""
        return self.trainer.gradient(self.samples, self.labels, self.soft)

    @property
    def accuracy(self) -> float:
        """Return the share of the batch that was predicted rightly when its gradient was taken last."""
        return float(self.trainer.right) / len(self.samples)

    def clip(self) -> None:
        """Shorten the gradients to norm 1 where they are longer."""
        torch.nn.utils.clip_grad_norm_(list(self.trainer.trained.values()), CLIP_NORM)

    def move(self, clip: bool = True) -> None:
        """Let AdamW take a step at the schedule's rate, and the maps theirs."""
        if clip:
            self.clip()
        self.trainer.optimizer.param_groups[0]["lr"] = self.trainer.schedule.rate(self.trainer.step)
        for _, optimizer, _ in self.trainer.optimised():
            optimizer.step()
