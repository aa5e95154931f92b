"""The tasks of an import: a person's names for them, their images, and what their classes are called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...catalog.datasets import KnownDataset, find_dataset, recognise_dataset
from ...errors import DataError, ZooError
from ...manifest import Task
from ...recipe import explain
from ..images.brought import ImageTask, open_brought
from ..making.prompts import asked_prompts, sets_in_words, wish_in_words
from ..names import known_task, title_of
from .architecture import Fact
from .heads import BroughtHead
from .request import REMOTE, ImportRequest, TaskPrompts

FUSIONBENCH = re.compile(r"(^|--)clip-vit-(base|large|huge)-patch\d+_")  # also as the hub's cache writes it


@dataclass
class FoundTask:
    """One task as the manifest will list it."""

    name: str
    trained: bool  # whether an expert was fine-tuned on it
    entry: dict[str, Any] = field(default_factory=dict)  # without ``data``
    images: ImageTask | None = None  # those that lie on this machine
    place: str = ""  # what ``data`` names where images lie elsewhere
    note: str = ""  # how the classes are known

    @property
    def scored(self) -> bool:
        """Return whether the task has images here."""
        return self.images is not None


def own_name(derived: str, said: Sequence[str]) -> str:
    """Return a person's name for a task that was found by the look of a file, else the name that was found.

    Args:
        derived: the public task that a path speaks of, or a part of the path.
        said: every name that a person gave to an expert, a head or data.
    """
    if derived in said:
        return derived
    meant = [name for name in said if known_task(name) is not None and known_task(name) == known_task(derived)]
    return meant[0] if len(set(meant)) == 1 else derived


def said_names(request: ImportRequest) -> list[str]:
    """Return every name that a person gave."""
    items = (*request.experts, *request.heads)
    return [*request.data, *(name for item in items for name in (item.task, item.name) if name)]


def find_tasks(
    request: ImportRequest, of_experts: Sequence[str], heads: Mapping[str, BroughtHead]
) -> tuple[list[FoundTask], list[str]]:
    """Return the tasks of an import, and what is wrong with them.

    A zoo whose experts bring neither heads nor images has tasks only where the catalogue knows all of them.
    """
    if not heads and not request.data and not all(map(find_dataset, of_experts)):
        return [], []
    found, faults = [], []
    names = list(dict.fromkeys([*of_experts, *heads, *request.data]))
    asked = asked_prompts(request.templates or _usual_set(request))
    asked.check(names)
    for name in names:
        try:
            task = _find(request, name, name in of_experts, heads.get(name))
            task.entry = _with_prompts(asked.put_into(task.entry), request.prompts.get(name))
            Task.model_validate(task.entry)
            found.append(task)
        except ValidationError as error:
            faults.append(f"Task '{name}': {explain(error, Task)}")
        except (DataError, ZooError) as error:
            faults.append(str(error) if f"'{name}'" in str(error) else f"Task '{name}': {error}")
    return found, faults


def _with_prompts(entry: dict[str, Any], given: TaskPrompts | None) -> dict[str, Any]:
    """Return a task's entry with the prompts that a person gave for it."""
    if given is None or not (given.template_set or given.templates):
        return entry
    rest = {name: value for name, value in entry.items() if name not in ("templates", "template_set", "words")}
    if given.template_set:
        return {**rest, "templates": given.template_set}
    words = {name: list(words) for name, words in given.words.items()}
    return {**rest, "templates": list(given.templates), **({"words": words} if words else {})}


def prompts_fact(request: ImportRequest, tasks: Sequence[FoundTask], heads: Mapping[str, BroughtHead]) -> Fact | None:
    """Return whose prompts heads will be built with, and how that is known; None where all heads are brought."""
    if heads or not tasks:
        return None
    entries = [Task.model_validate(task.entry) for task in tasks]
    if request.prompts:
        origin = "given for each task"
    elif request.templates:
        origin = wish_in_words(request.templates, entries)
    elif _usual_set(request):
        origin = f"read: {_of_fusionbench(request)} is named like FusionBench's experts"
    else:
        origin = "the default of each data set, or its description"
    return Fact("templates", sets_in_words(entries), origin)


def _usual_set(request: ImportRequest) -> str:
    """Return the prompts with which brought experts were measured, where that can be told; '' where it cannot."""
    return "fusionbench" if _of_fusionbench(request) else ""


def _of_fusionbench(request: ImportRequest) -> str:
    """Return the first folder that is named as FusionBench's repositories are, `clip-vit-base-patch32_sun397`."""
    parts = [part for item in request.experts for part in Path(item.path).parts[-3:]]
    return next((part for part in parts if FUSIONBENCH.search(part) and known_task(part)), "")


def _find(request: ImportRequest, name: str, trained: bool, head: BroughtHead | None) -> FoundTask:
    place = request.data.get(name, "")
    task = FoundTask(name, trained)
    if place.startswith(REMOTE):
        task.place = place
    elif place:
        task.images = open_brought(Path(place).expanduser(), name)
        if name in request.prompts and (classes := request.prompts[name].classes):
            named = {**task.images.description, "class_names": list(classes)}
            task.images = replace(task.images, description=named)
    classes, task.note = _classes(task, head)
    task.entry = {"name": name, "domain": "in" if trained else "out", **classes}
    return task


def _classes(task: FoundTask, head: BroughtHead | None) -> tuple[dict[str, Any], str]:
    """Return title and classes for the manifest, and where they come from.

    Raises:
        DataError: nobody names the classes, or head and images have different numbers of them.
    """
    count = len(head.rows) if head is not None else None
    own = _of_images(task.images, count) if task.images is not None else {}
    row = find_dataset(own.get("dataset", "")) or (_row(task) if not own else None)
    if row is not None and count not in (None, row.count):
        if own:
            raise DataError(f"The head of '{task.name}' has {count} classes; its images are {row.title}'s {row.count}.")
        row = None
    if row is not None:
        return {**own, "dataset": row.name}, f"classes of {row.title}, from the catalogue of data sets"
    title = {} if "title" in own else {"title": title_of(task.name)}
    if "classes" in own:
        if count not in (None, len(own["classes"])):
            raise DataError(
                f"The head of '{task.name}' has {count} classes, its images have {len(own['classes'])}: "
                f"{', '.join(own['classes'][:4])} …. Choose the head and the images of one task."
            )
        if len(own["classes"]) < 2:
            raise DataError(f"The images of '{task.name}' have one class only, {own['classes'][0]}; two are needed.")
        order = "; the head's rows are taken to be in this order" if head is not None else ""
        return {**title, **own}, f"{len(own['classes'])} classes as the images name them{order}"
    if count is not None:
        classes = [f"class {number}" for number in range(count)]
        return {**title, **own, "classes": classes}, f"{count} classes without names, as many as the head has"
    if task.images is None and not task.place:
        return {**title, "classes": []}, "no classes: neither head nor images"
    raise DataError(
        f"Nobody names the classes of '{task.name}': there is no head for it, and its images bring none. Give a head, "
        f"or write the `class_names` into {task.name}.json beside the images."
    )


def _of_images(images: ImageTask, count: int | None) -> dict[str, Any]:
    """Return a task's classes from images and description; their number is checked where only a head has them."""
    try:
        return images.entry(())
    except DataError:
        if count is None:
            raise
    highest = max(
        (
            int(images.source.labels(split).max(initial=0))
            for split in ("test", "train", "val")
            if images.source.lengths.get(split)
        ),
        default=0,
    )
    if highest >= count:
        raise DataError(
            f"The images of '{images.name}' have a label {highest}; its head has {count} classes (0 to {count - 1})."
        )
    return {}


def _row(task: FoundTask) -> KnownDataset | None:
    """Return the catalogue's row that a task's name or the place of its images names."""
    if task.place:
        return recognise_dataset(task.place.split(":", 1)[1]) or recognise_dataset(task.name)
    known = known_task(task.name)
    return find_dataset(task.name) or (find_dataset(known) if known else None)
