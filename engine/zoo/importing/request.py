"""What an import is asked for. Free of torch: pages write it, the engine reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from ...errors import ZooError
from ...manifest import SAFE_NAME
from ...recipe import Frozen, explain

DType = Literal["keep", "float32", "float16", "bfloat16"]
REMOTE = ("hf:", "torchvision:")


class Item(Frozen):
    """An expert or a head: where it lies, what it is called, which task it is for."""

    path: str
    name: str = Field("", max_length=64)
    task: str = Field("", max_length=64)


class ImportRequest(Frozen):
    """Checkpoints to make a zoo of."""

    base: str
    experts: tuple[Item, ...] = Field(min_length=1, max_length=200)
    heads: tuple[Item, ...] = ()
    data: dict[str, str] = Field(default_factory=dict)  # task → what the manifest names
    name: str = Field(pattern=SAFE_NAME)
    title: str = ""
    out: str  # the folder to make
    dtype: DType = "keep"
    architecture: str = ""  # an open_clip name; '' recognises it
    quick_gelu: bool | None = None  # None believes the checkpoint

    @model_validator(mode="after")
    def _distinct(self) -> ImportRequest:
        names = [item.name for item in self.experts if item.name]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"two experts are named '{twice[0]}'; give one of them another name")
        return self

    @property
    def folder(self) -> Path:
        """The folder to make."""
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
