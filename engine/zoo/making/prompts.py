"""The prompts that somebody asks for, put into the entries of zoo.yaml, and told in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...catalog.datasets import find_dataset
from ...catalog.prompts import PROMPT_SETS, USUAL, PromptSet, is_prompt_set, read_prompt_file
from ...errors import ZooError, nearest
from ...manifest import Task

SHOWN = 3  # names in a list; the others are counted


@dataclass(frozen=True)
class AskedPrompts:
    """A person's wish for prompts; empty leaves every task its default."""

    name: str = ""  # a published set
    own: PromptSet | None = None  # for every task
    by_task: dict[str, PromptSet] = field(default_factory=dict)

    def put_into(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return a task's entry with the prompts asked for, as zoo.yaml names them.

        A task of no known data set, or of one without the set asked for, keeps what it has: prompts of one data set say
        nothing about another.
        """
        own = self.by_task.get(entry["name"], self.own)
        rest = {name: value for name, value in entry.items() if name not in ("templates", "template_set", "words")}
        if own is not None:
            words = {name: list(words) for name, words in own.words.items()}
            return {**rest, "templates": list(own.templates), **({"words": words} if words else {})}
        row = find_dataset(str(entry.get("dataset", ""))) if self.name else None
        return {**rest, "templates": self.name} if row is not None and self.name in row.prompts else entry

    def check(self, tasks: Iterable[str]) -> None:
        """Refuse prompts for tasks that there are not.

        Raises:
            ZooError: naming the first.
        """
        known = list(tasks)
        for name in self.by_task:
            if name not in known:
                raise ZooError(f"The file of templates names a task '{name:.60}'. {nearest(name, known)}")


def asked_prompts(asked: str) -> AskedPrompts:
    """Read a person's wish.

    Args:
        asked: a name of :data:`engine.catalog.prompts.PROMPT_SETS`, a file of own templates, or '' for none.

    Raises:
        ZooError: neither a set nor a file that can be read.
    """
    if not asked:
        return AskedPrompts()
    if is_prompt_set(asked):
        return AskedPrompts(asked)
    found = read_prompt_file(Path(asked).expanduser())
    return AskedPrompts(own=found) if isinstance(found, PromptSet) else AskedPrompts(by_task=found)


def sets_in_words(tasks: Iterable[Task]) -> str:
    """Return which templates tasks use, for people, grouped by set."""
    groups: dict[str, list[str]] = {}
    for task in tasks:
        whose = PROMPT_SETS.get(task.template_set) or ("own" if task.templates else f"CLIP's usual (“{USUAL}”)")
        groups.setdefault(whose, []).append(task.name)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{whose} for {_some(names)}" for whose, names in groups.items())


def wish_in_words(asked: str, tasks: Iterable[Task]) -> str:
    """Return what was asked for, for people, and where it could not be met.

    Args:
        asked: as :func:`asked_prompts` takes it.
        tasks: with the templates that they got.
    """
    others = [task for task in tasks if task.template_set != asked] if asked in PROMPT_SETS else []
    if not others:
        return f"given: {asked}"
    named = _some([task.name for task in others])
    return f"given: {asked}; {PROMPT_SETS[asked]} set has none for {named}, in its place: {sets_in_words(others)}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
