"""Training texts of mini_text: not shipped, but written again from the settings of its recipe."""

from __future__ import annotations

from pathlib import Path

from .files import write_split
from .sentences import SIZES, write_task
from .tasks import IN_DOMAIN


def written_tasks() -> tuple[str, ...]:
    """Return the names of the tasks that training texts can be written for."""
    return tuple(task.name for task in IN_DOMAIN)


def add_training_texts(task: str, path: Path) -> None:
    """Write a task's training texts, those that the shipped experts were trained on, beside the other splits.

    Args:
        task: one of :func:`written_tasks`.
        path: the folder of the task's texts.
    """
    entry = next(entry for entry in IN_DOMAIN if entry.name == task)
    splits = write_task(entry, {**SIZES, "pretrain": 0})  # those are written last, so that no other depends on them
    write_split(path, "train", splits["train"])
