"""The request of an import. Free of torch: pages write it, the engine reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from ...errors import ZooError
from ...manifest import RESERVED, SAFE_NAME, Preprocess
from ...recipe import Frozen, explain

DType = Literal["keep", "float32", "float16", "bfloat16"]
REMOTE = ("hf:", "torchvision:")


def _named(value: str) -> str:
    if not re.fullmatch(SAFE_NAME, value):
        raise ValueError(
            f"'{value:.80}' is no name; up to 64 letters, digits, _, . and -, the first a letter or a digit, are "
            "(for a zoo give --name)"
        )
    return value


Name = Annotated[str, AfterValidator(_named)]
OptionalName = Annotated[str, AfterValidator(lambda value: _named(value) if value else value)]


class Item(Frozen):
    """An expert or a head: where it lies, what it is called, which task it is for."""

    path: str
    name: OptionalName = ""
    task: OptionalName = ""


class TaskPrompts(Frozen):
    """Classes and prompts of one task, as a person wrote them."""

    template_set: str = Field("", max_length=64)  # a published set, for images of a known data set
    templates: tuple[str, ...] = Field((), max_length=1000)
    words: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # class → its names in prompts, where they differ
    classes: tuple[str, ...] = Field((), max_length=100_000)  # in label order, for images that bring no names
    grades: tuple[float, ...] = Field((), max_length=1000)  # numbers that texts are graded with, rising


class ImportRequest(Frozen):
    """Checkpoints to make a zoo of."""

    base: str
    experts: tuple[Item, ...] = Field(min_length=1, max_length=200)
    heads: tuple[Item, ...] = ()
    data: dict[str, str] = Field(default_factory=dict)  # task → what the manifest names
    name: Name
    title: str = ""
    out: str  # the folder to make
    dtype: DType = "keep"
    architecture: str = ""  # an open_clip name; '' recognises it
    quick_gelu: bool | None = None  # None believes the checkpoint
    head_width: int | None = Field(None, ge=1, le=4096)  # of attention; None believes the checkpoint
    preprocess: Preprocess | str = Field("", max_length=1000)  # a preset's name, a file or values; '' reads it
    templates: str = Field("", max_length=1000)  # a published set's name, or a file of own ones; '' takes the usual
    prompts: dict[str, TaskPrompts] = Field(default_factory=dict)  # by task, before what `templates` says of all
    logit_scale: float | None = Field(None, gt=0, le=1e6)  # what cosines are multiplied with; None reads it
    length: int | None = Field(None, ge=4, le=4096)  # tokens a text; None takes 128, or what the model can read
    token: str = Field("", max_length=64)  # names this wish; the same files may be imported again

    @model_validator(mode="after")
    def _distinct(self) -> ImportRequest:
        names = [item.name for item in self.experts if item.name]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"two experts are named '{twice[0]}'; give one of them another name")
        if taken := [name for name in names if name in RESERVED]:
            raise ValueError(f"'{taken[0]}' is reserved; rename this expert or leave it out")
        if unsafe := [task for task in self.data if not re.fullmatch(SAFE_NAME, task)]:
            raise ValueError(f"the task '{unsafe[0]:.64}' of the data needs a name of letters, digits, _, . and -")
        return self

    @property
    def folder(self) -> Path:
        """Return the folder to make."""
        return Path(self.out).expanduser()


def parse_request(document: Mapping[str, Any]) -> ImportRequest:
    """Validate a request.

    Raises:
        ZooError: with the place and what was found.
    """
    try:
        return ImportRequest.model_validate(dict(document))
    except ValidationError as error:
        raise ZooError(f"The import cannot be carried out as asked: {explain(error, ImportRequest)}") from error
