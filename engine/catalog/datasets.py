"""The data sets of the field: class names in label order, published prompts, where they come from.

One YAML file a data set in ``assets/datasets``; facts, with the source of class names and prompts in each file. Prompts
are those of CLIP (``openai``; Task Arithmetic's are the same) and those with which FusionBench's experts were trained
and measured (``fusionbench``). Most sentences are common to both; what they call the classes differs more often.
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
from ..shipped import ASSETS
from .prompts import PROMPT_SETS, PromptSet

FOLDER = ASSETS / "datasets"
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
    prompts: dict[str, PromptSet] = Field(min_length=1)  # by name of the set; the first is the default
    classes: tuple[str, ...]
    labels: tuple[str, ...] = ()  # the data set's own label names, where prompts use other words

    @model_validator(mode="before")
    @classmethod
    def _listed_elsewhere(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        prompts = value.get("prompts") or {}
        shared = {
            name: {**found, "templates": prompts[found["templates"]]["templates"]}
            for name, found in prompts.items()
            if isinstance(found.get("templates"), str)  # the same sentences as another set's
        }
        classes = {"classes": _imagenet_classes()} if value.get("classes") == "open_clip" else {}
        return {**value, "prompts": {**prompts, **shared}, **classes}

    @model_validator(mode="after")
    def _counted(self) -> KnownDataset:
        if len(self.classes) != self.count or len(self.labels) not in (0, self.count):
            raise ValueError(f"{self.name} lists {len(self.classes)} classes; it has {self.count}")
        for name, found in self.prompts.items():
            if name not in PROMPT_SETS or set(found.words) - set(self.classes):
                raise ValueError(f"{self.name}: the prompts '{name}' are no known set, or name classes that it has not")
        return self

    @property
    def label_names(self) -> tuple[str, ...]:
        """Return the data set's own label names, in label order."""
        return self.labels or self.classes

    @property
    def default_set(self) -> str:
        """Return the set of prompts that is used where nobody asks for one."""
        return next(iter(self.prompts))


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


def prompts_of(entry: dict[str, Any], row: KnownDataset) -> dict[str, Any]:
    """Return templates, words and their set for a task of a known data set.

    Raises:
        ValueError: the data set has no such set, or the entry lists other templates beside it.
    """
    own, asked = entry.get("templates"), entry.get("template_set")
    if isinstance(own, str):
        asked, own = own, None
    if own and not asked:
        return {}
    name = asked or row.default_set
    if not isinstance(name, str) or name not in row.prompts:
        raise ValueError(f"{row.title} has no templates '{name!s:.60}'; it has those of {', '.join(row.prompts)}")
    found = row.prompts[name]
    if own and (not isinstance(own, list | tuple) or tuple(own) != found.templates):
        raise ValueError(
            f"the templates listed are not {PROMPT_SETS[name]} of {row.title}; leave out `template_set`, or the list"
        )
    listed = entry.get("classes", row.classes)
    classes = {label for label in listed if isinstance(label, str)} if isinstance(listed, list | tuple) else set()
    words = {label: words for label, words in found.words.items() if label in classes}
    return {"templates": found.templates, "template_set": name, "words": entry.get("words") or words}


def with_set(entry: Any, name: str) -> Any:
    """Return a task's entry with a set of templates, where it names none and its data set has that one."""
    if not isinstance(entry, dict) or entry.get("templates") or entry.get("template_set"):
        return entry
    row = find_dataset(entry["dataset"]) if isinstance(entry.get("dataset"), str) else None
    return {**entry, "templates": name} if row is not None and name in row.prompts else entry


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
