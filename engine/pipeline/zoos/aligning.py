"""Requests to align experts that start from another base, and what speaks against one. Free of torch: forms ask it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from ...catalog import ALIGNMENTS, AlignmentRow, params_of, row_of
from ...errors import RecipeError, ZooError, nearest
from ...manifest import ASSETS, SAFE_NAME, Expert, Manifest
from ...recipe import Request
from ...zoo.folder import Zoo

LABELLED = ("val", "train")  # where labelled images are taken from, the first there is
SPLITS = ("adapt", "train", "test")  # and where unlabelled ones are


class AlignRequest(Request):
    """Request to order the units of experts like those of the zoo's base."""

    REFUSAL = "Experts cannot be aligned like this"

    zoo: str
    experts: Literal["all"] | tuple[str, ...] = "all"
    method: str = Field("weight_matching", title="Method", description="A row of the catalogue's alignments.")
    params: dict[str, Any] = Field(default_factory=dict, title="Parameters", description="Of the method.")
    called: str = Field(
        "",
        pattern=rf"^$|{SAFE_NAME}",
        title="Called",
        description="Each aligned expert is listed as TASK-CALLED beside the expert as it is; by default its entry "
        "changes.",
    )

    @property
    def row(self) -> AlignmentRow:
        """Return the method's row."""
        return row_of(ALIGNMENTS, self.method, "way to align")

    @model_validator(mode="after")
    def _known(self) -> AlignRequest:
        try:
            params_of(self.row, dict(self.params))
        except RecipeError as error:
            raise ValueError(str(error)) from error
        if not self.experts:
            raise ValueError("choose at least one expert")
        return self


def unaligned(manifest: Manifest) -> list[Expert]:
    """Return the experts that start from another base and whose units are in another order than the zoo's."""
    return [expert for expert in manifest.experts if expert.base and not expert.aligned]


def place_problem(zoo: Zoo) -> str:
    """Return why the folder of a zoo stays as it is; '' where it may change."""
    if zoo.folder.resolve().is_relative_to(ASSETS.resolve()):
        return (
            f"The zoo '{zoo.manifest.name}' comes with the app and stays as it is. Align its experts in a copy of it."
        )
    if not os.access(zoo.folder, os.W_OK):
        return f"The folder of the zoo '{zoo.manifest.name}' cannot be written. Align its experts in a copy of it."
    return ""


def experts_to_align(zoo: Zoo, asked: AlignRequest) -> dict[str, str]:
    """Return the experts to align, each with the name that its aligned form is listed by.

    Raises:
        EngineError: the zoo's folder cannot change, an expert is unknown, in place or aligned, a name is taken, or
            images that the method looks at are missing.
    """
    if problem := place_problem(zoo):
        raise ZooError(problem)
    chosen = _chosen(zoo.manifest, asked.experts)
    for expert in chosen:
        _check_images(zoo, expert.task, asked.row)
    return _listed(zoo.manifest, chosen, asked.called) if asked.called else {e.name: e.name for e in chosen}


def split_of(zoo: Zoo, task: str, splits: Sequence[str]) -> str:
    """Return the first split that there is of a task.

    Raises:
        ZooError: there is none.
    """
    found = next((name for name in splits if zoo.data[task].has(name)), "") if task in zoo.data else ""
    if not found:
        raise ZooError(
            f"Aligning by this method needs {' or '.join(splits)} {zoo.modality.many} of '{task}'. Add them to that "
            "task's data in zoo.yaml, or match by weights."
        )
    return found


def images_in_words(record: Mapping[str, Any], many: str = "images") -> str:
    """Return what a matching looked at and what the function was compared on, of one expert's record.

    Args:
        record: of the expert.
        many: what samples are called.
    """
    seen = [f"{part['n']:,} {part['split']} {many}" for part in record["looked"]]
    checked = record["checked"]
    compared = f"{checked['n']:,} {checked['split']} {many}" if checked["split"] else f"{checked['n']:,} made {many}"
    return f"matched on {' and '.join(seen) or 'weights alone'}, compared on {compared}"


def _check_images(zoo: Zoo, task: str, row: AlignmentRow) -> None:
    if "unlabelled" in row.needs:
        split_of(zoo, task, SPLITS)
    if "validation" in row.needs:
        split_of(zoo, task, LABELLED)


def _chosen(manifest: Manifest, names: Literal["all"] | Sequence[str]) -> list[Expert]:
    if names == "all":
        if found := unaligned(manifest):
            return found
        raise ZooError(
            f"No expert of the zoo '{manifest.name}' starts from another base, so there is nothing to align. An "
            "expert that does names it in zoo.yaml (`base: FILE`)."
        )
    table = manifest.expert_table
    for name in names:
        if name not in table:
            raise ZooError(f"The zoo '{manifest.name}' has no expert '{name}'. {nearest(name, table)}")
        if not table[name].base:
            raise ZooError(
                f"Expert '{name}' names no base of its own, so it starts from the zoo's and its units are in place. "
                "Add `base: FILE` to it in zoo.yaml where that is not so."
            )
        if table[name].aligned:
            raise ZooError(
                f"Expert '{name}' is aligned already ({table[name].aligned}). Another order would be laid on the one "
                "that it has; train it again, or align what it was made from."
            )
    return [table[name] for name in dict.fromkeys(names)]


def _listed(manifest: Manifest, chosen: Sequence[Expert], called: str) -> dict[str, str]:
    """Return what aligned copies are called, by the name of the expert that stays."""
    found = {expert.name: f"{expert.task}-{called}" for expert in chosen}
    names = list(found.values())
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ZooError(
            f"Two experts would be called '{twice}'. Align them one by one (--expert), each --called its own."
        )
    for expert in chosen:
        name, same = found[expert.name], manifest.expert_of(expert.task, called)
        if name in manifest.expert_table:
            raise ZooError(f"The zoo has an expert '{name}' already. Give another name with --called.")
        if same is not None:
            raise ZooError(
                f"The zoo calls the way of expert '{same.name}' '{called}' already. Give another name with --called."
            )
        if not re.match(SAFE_NAME, name):
            raise ZooError(f"'{name:.80}' is too long a name. Give a shorter one with --called.")
    return found
