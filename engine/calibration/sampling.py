"""Batches of rows that a calibrator sees at each step, and the checks on what it is given."""

# ruff: noqa: F722
from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import CalibrationError, UnpairedFeatures


def generator_for(seed: int, name: str, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a random generator that depends on the seed, the task and the purpose, and on nothing else.

    A task's draws are therefore the same whichever other tasks are trained beside it.
    """
    digest = hashlib.sha256(f"{seed}\0{name}\0{purpose}".encode()).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class EndlessBatches:
    """Endless batches of row numbers: all rows in random order, again and again.

    Every row is used equally often; a batch may span the end of one pass and the start of the next.
    """

    def __init__(self, rows: int, batch: int, generator: torch.Generator) -> None:
        self.rows, self.batch, self.generator = rows, batch, generator
        self._left = torch.empty(0, dtype=torch.int64)

    def take(self, steps: int) -> Int[Tensor, "steps batch"]:
        """Return the row numbers of the next ``steps`` batches."""
        needed = steps * self.batch
        parts = [self._left]
        have = len(self._left)
        while have < needed:
            parts.append(torch.randperm(self.rows, generator=self.generator))
            have += self.rows
        stream = torch.cat(parts)
        self._left = stream[needed:]
        return stream[:needed].view(steps, self.batch)


def check_pairs(
    merged: Mapping[str, Float[Tensor, "n dim"]], expert: Mapping[str, Float[Tensor, "n dim"]], batch_size: int
) -> None:
    """Refuse features that a calibrator cannot be trained on.

    Raises:
        UnpairedFeatures: a task's merged and expert features differ in their number of rows.
        CalibrationError: no task, a task on one side only, a task without images or with fewer than a batch,
            widths that differ, or values that are not finite.
    """
    if not merged:
        raise CalibrationError("No task to calibrate: give merged and expert features of at least one task.")
    if set(merged) != set(expert):
        odd = sorted(set(merged) ^ set(expert))
        raise CalibrationError(f"Tasks {', '.join(odd)} have only merged or only expert features; both are needed.")
    first = next(iter(merged.values()))
    for task, z in merged.items():
        if z.ndim != 2 or expert[task].ndim != 2:
            raise CalibrationError(f"Features of '{task}' must have shape (n, dim); found {_shapes(z, expert[task])}.")
        check_rows(task, len(z), len(expert[task]), batch_size)
        if z.shape[1] != expert[task].shape[1] or z.shape[1] != first.shape[1]:
            raise CalibrationError(
                f"Features of '{task}' have widths {z.shape[1]} (merged) and {expert[task].shape[1]} (expert); "
                f"all must be {first.shape[1]} wide. Use one encoder architecture."
            )
        if not (torch.isfinite(z).all() and torch.isfinite(expert[task]).all()):
            raise CalibrationError(f"Features of '{task}' hold values that are not finite; the encoder has overflowed.")


def check_rows(task: str, merged: int, expert: int, batch_size: int) -> None:
    """Refuse unpaired rows and tasks that are too small.

    Raises:
        UnpairedFeatures: the counts differ.
        CalibrationError: no images, or fewer than a batch.
    """
    if merged != expert:
        raise UnpairedFeatures(
            f"'{task}' has {merged} merged and {expert} expert feature rows; they must be the same images in one order."
        )
    if merged == 0:
        raise CalibrationError(f"'{task}' has no images to adapt on; give it some or leave the task out.")
    if merged < batch_size:
        raise CalibrationError(
            f"'{task}' has {merged} image{'s' if merged > 1 else ''} to adapt on, fewer than the batch size of "
            f"{batch_size}. Set batch_size to at most {merged} or give it more images."
        )


def joined(features: Mapping[str, Tensor], tasks: Sequence[str], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return all tasks' rows under each other, and the number of the first row of each task."""
    sizes = [len(features[task]) for task in tasks]
    starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
    return torch.cat([features[task].detach().to(dtype) for task in tasks]), starts


def _shapes(*tensors: Tensor) -> str:
    return " and ".join(str(tuple(tensor.shape)) for tensor in tensors)
