"""Batches and updates of calibrators inside the encoder."""

# ruff: noqa: F722
from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from .coefficients import JointStudent
from .deep import ENCODE_BATCH, DeepCalibrator, Prefix
from .sampling import EndlessBatches, generator_for
from .stack import AdamInTurn, IndependentAdam, Stack
from .tower import Tower

CPU_IMAGES = 32  # images a CPU takes through the encoder at once: activations stay in its cache


def deep_update(
    module: DeepCalibrator, tower: Tower, stack: Stack, feed: ImageBatches, student: JointStudent | None = None
) -> Callable[[], Tensor]:
    """Return an update of every task: all at once, or in turn where modules are not independent.

    Args:
        module: the calibrator; its config says how its Adam works.
        tower: the encoder.
        stack: the parameters.
        feed: gives batches.
        student: where merging coefficients learn too; they are updated at every task's turn.

    Returns:
        A function that updates the stack and returns the losses before it, shape (tasks,).
    """
    rate, times = module.config.learning_rate, module.updates_per_gradient
    if student is not None or module.config.adam_semantics == "shared":
        return _in_turn(module, tower, stack, feed, student)
    adam = IndependentAdam(stack, rate)

    def together() -> Tensor:
        stack.gradients.zero_()
        losses = backward(module, tower, *feed.next())
        module.before_update()
        for _ in range(times):
            adam.step()
        module.after_update()
        return losses

    return together


@torch.enable_grad()
def backward(
    module: DeepCalibrator,
    tower: Tower,
    prefix: Prefix,
    teacher: Float[Tensor, "stack batch aligned"],
    first: int = 0,
) -> Float[Tensor, " stack"]:
    """Add every task's gradients, a few tasks at a time on a CPU (modules are independent), and return the losses.

    Args:
        module: the calibrator.
        tower: the encoder.
        prefix: of stack · batch images.
        teacher: what is aligned with.
        first: row of the first task.
    """
    tasks, batch = teacher.shape[:2]
    together = max(1, CPU_IMAGES // batch) if teacher.device.type == "cpu" else tasks
    losses = []
    for start in range(0, tasks, together):
        stop = min(start + together, tasks)
        part = tuple(tensor[start * batch : stop * batch] for tensor in prefix)
        loss = module.losses(module.student(tower, part, slice(first + start, first + stop)), teacher[start:stop])
        loss.sum().backward()
        losses.append(loss.detach())
    return torch.cat(losses)


def _in_turn(
    module: DeepCalibrator, tower: Tower, stack: Stack, feed: ImageBatches, student: JointStudent | None
) -> Callable[[], Tensor]:
    rate, drifting = module.config.learning_rate, module.config.adam_semantics == "shared"
    adam = AdamInTurn(stack, rate, drifting=drifting)
    beside = None if student is None else torch.optim.Adam([student.learned], lr=rate)

    def update() -> Tensor:
        inputs, teacher = feed.next()
        losses = []
        stack.gradients.zero_()
        for row, batch in enumerate(zip(*(tensor.chunk(len(teacher)) for tensor in inputs), strict=True)):
            target = teacher[row : row + 1]
            if student is None:
                losses.append(backward(module, tower, batch, target, row))
            else:
                losses.append(student.backward(batch[0], target, slice(row, row + 1)))
            module.before_update()
            adam.step(row, module.updates_per_gradient)
            if beside is not None:
                beside.step()
            module.after_update()
        return torch.cat(losses)

    return update


class ImageBatches:
    """Batches of every task: prefixes of tasks · batch images, and the teacher's (tasks, batch, aligned)."""

    def __init__(
        self,
        module: DeepCalibrator,
        tower: Tower,
        images: Mapping[str, Tensor],
        teacher: Mapping[str, Tensor],
        batch: int,
        seed: int,
        cache_bytes: int,
        plain: bool = False,
    ) -> None:
        """Bind data; ``plain`` gives the images themselves in place of prefixes."""
        self._plain = plain
        self._module, self._tower, self._images = module, tower, images
        weight = tower.weight
        self._teacher = [teacher[task].to(weight.device, weight.dtype) for task in images]
        self._batches = [EndlessBatches(len(images[t]), batch, generator_for(seed, t, "batches")) for t in images]
        with torch.no_grad():
            first = next(iter(images.values()))
            one = sum(part.numel() * part.element_size() for part in module.prefix(tower, first[:1]))
            fits = one * sum(len(part) for part in images.values()) <= cache_bytes
            self._cache = [self._encode(part) for part in images.values()] if fits else None

    def next(self) -> tuple[Prefix, Tensor]:
        """Return the next batch of every task."""
        numbers = [batches.take(1)[0] for batches in self._batches]
        teacher = torch.stack([part[n.to(part.device)] for part, n in zip(self._teacher, numbers, strict=True)])
        with torch.no_grad():
            if self._cache is None:
                drawn = [part[n.to(part.device)] for part, n in zip(self._images.values(), numbers, strict=True)]
                return self._prefix(torch.cat(drawn)), teacher
            picked = [
                tuple(tensor[n.to(tensor.device)] for tensor in prefix)
                for prefix, n in zip(self._cache, numbers, strict=True)
            ]
            return tuple(torch.cat(parts) for parts in zip(*picked, strict=True)), teacher

    def _prefix(self, images: Tensor) -> Prefix:
        if self._plain:
            weight = self._tower.weight
            return (images.to(weight.device, weight.dtype if images.is_floating_point() else images.dtype),)
        return self._module.prefix(self._tower, images)

    def _encode(self, images: Tensor) -> Prefix:
        chunks = [self._module.prefix(self._tower, chunk) for chunk in images.split(ENCODE_BATCH)]
        return tuple(torch.cat(parts) for parts in zip(*chunks, strict=True))
