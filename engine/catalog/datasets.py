"""The data sets of the field: class names in label order, zero-shot templates, where they come from.

One YAML file a data set in ``assets/datasets``; facts, with the source of the class names in each file. The templates
are MergeLens's own, as many a data set as the papers use. Experts that were fine-tuned against published heads are
judged best with those heads; these are for zoos that bring none.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from ..errors import ZooError, nearest
from ..recipe import Frozen, explain, read_yaml

FOLDER = Path(__file__).resolve().parent.parent.parent / "assets" / "datasets"
MERGED_8 = ("sun397", "stanford_cars", "resisc45", "eurosat", "svhn", "gtsrb", "mnist", "dtd")
FURTHER_6 = ("flowers102", "pcam", "fer2013", "oxford_iiit_pet", "stl10", "cifar100")
FURTHER_12 = (*FURTHER_6, "cifar10", "food101", "fashion_mnist", "emnist_letters", "kmnist", "rendered_sst2")
OUT_OF_DOMAIN_13 = (*FURTHER_12, "imagenet")  # of LwPTV's Table 2
TWICE_IN_IMAGENET = {744: "projectile", 836: "sunglass"}  # WordNet's first words, where the list repeats a name


class Hub(Frozen):
    """Place of a data set on the Hugging Face Hub, and the split that is evaluated on."""

    repo: str
    config: str = ""
    split: Literal["test", "validation"] = "test"


class KnownDataset(Frozen):
    """A row of the catalogue."""

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    count: int = Field(ge=2)
    hub: Hub | None = None
    torchvision: str = ""  # name of torchvision's class, '' where it has none
    homepage: str = ""
    licence: str = ""  # '' where the source states none
    paper: str = ""
    source: str = ""  # where the class names and their order come from
    templates: tuple[str, ...] = Field(min_length=1)
    classes: tuple[str, ...]
    labels: tuple[str, ...] = ()  # the data set's own label names, where prompts use other words

    @model_validator(mode="before")
    @classmethod
    def _listed_elsewhere(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("classes") == "open_clip":
            return {**value, "classes": _imagenet_classes()}
        return value

    @model_validator(mode="after")
    def _counted(self) -> KnownDataset:
        if len(self.classes) != self.count or len(self.labels) not in (0, self.count):
            raise ValueError(f"{self.name} lists {len(self.classes)} classes; it has {self.count}")
        return self

    @property
    def label_names(self) -> tuple[str, ...]:
        """The data set's own label names, in label order."""
        return self.labels or self.classes


def dataset_names() -> tuple[str, ...]:
    """Return the names of all rows, the eight of the papers first."""
    return tuple(name for name in (*MERGED_8, *OUT_OF_DOMAIN_13) if (FOLDER / f"{name}.yaml").is_file())


def known_dataset(name: str) -> KnownDataset:
    """Return a row by its name or one of its other names; case, dashes and spaces do not matter.

    Raises:
        ZooError: there is none, with the nearest name.
    """
    found = find_dataset(name)
    if found is None:
        raise ZooError(f"The catalogue has no data set '{name}'. {nearest(name, dataset_names())}")
    return found


def find_dataset(name: str) -> KnownDataset | None:
    """Return the row of that name or other name; None where there is none."""
    place = _index().get(_plain(name))
    return _read(place) if place else None


def recognise_dataset(text: str, names: Iterable[str] = ()) -> KnownDataset | None:
    """Return the data set that a task's name, a folder or a Hub id such as ``tanganke/eurosat`` speaks of.

    Args:
        text: a name or path.
        names: label names that the data brings; a row is recognised by them too, when they are all its own.
    """
    for part in (text, Path(text).name, Path(text).stem):
        if row := find_dataset(part):
            return row
    brought = sorted(_plain(name) for name in names)
    if len(brought) > 2 and not all(name.isdigit() for name in brought):
        for known in dataset_names():
            row = _read(known)
            if brought in (sorted(map(_plain, row.classes)), sorted(map(_plain, row.labels))):
                return row
    return None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower())


@cache
def _index() -> dict[str, str]:
    """Return every spelling of a name → the row's name."""
    index = {_plain(name): name for name in dataset_names()}
    for name in dataset_names():
        row = _document(name)
        hub = row.get("hub") or {}
        for spelling in (*row.get("aliases", ()), row.get("torchvision", ""), hub.get("repo", "")):
            if spelling:
                index.setdefault(_plain(spelling), name)
    return index


@cache
def _document(name: str) -> dict[str, Any]:
    return read_yaml(FOLDER / f"{name}.yaml", ZooError, "data set description")


@cache
def _read(name: str) -> KnownDataset:
    try:
        return KnownDataset.model_validate(_document(name))
    except ValidationError as error:
        raise ZooError(f"assets/datasets/{name}.yaml cannot be used: {explain(error, KnownDataset)}") from error


@cache
def _imagenet_classes() -> tuple[str, ...]:
    """Return ImageNet's class names as open_clip lists them, read without importing open_clip (which imports torch)."""
    package = importlib.util.find_spec("open_clip")
    folders = (package.submodule_search_locations or []) if package else []
    for folder in folders:
        path = Path(folder) / "zero_shot_metadata.py"
        spec = importlib.util.spec_from_file_location("_open_clip_class_names", path)
        if path.is_file() and spec and spec.loader:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            names = list(module.IMAGENET_CLASSNAMES)
            for label, name in TWICE_IN_IMAGENET.items():
                names[label] = name
            return tuple(names)
    raise ZooError("ImageNet's class names come with open_clip, which is not installed.")
