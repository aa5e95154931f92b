"""``zoo.yaml``: what a zoo folder holds. Reading a manifest never reads weights, and never downloads anything."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from .catalog.datasets import known_dataset, prompts_of, with_set
from .catalog.prompts import Templates, Words, prompts_in_words
from .errors import ZooError, nearest
from .mounts import there
from .preparation import Preprocess, Tokenisation
from .recipe import LATER, MAX_RECIPE_BYTES, RESERVED_STATES, Forward, Frozen, Sparse, explain, read_yaml
from .rounding import spelled
from .shipped import ASSETS

ENV_CACHE = "MERGELENS_CACHE"
ELSEWHERE = ("hf:", "local:", "torchvision:")  # sources that are no files of the zoo's folder
MAX_PATH = 1000
PARSED = 256  # manifests that are kept parsed
STANDARD = "standard"  # the recipe of experts that name none
RESERVED = ("base", *RESERVED_STATES)  # names of models that no expert may have
SAFE_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"


class Backbone(Sparse):
    """The pretrained model that all experts start from."""

    architecture: str
    weights: str
    quick_gelu: bool | None = None
    preprocess: Preprocess | None = None
    tokenisation: Annotated[Tokenisation | None, LATER] = None
    # Fact → its value and how an import knew it, for people; they change no result.
    origins: Annotated[dict[str, str], LATER] = Field(default_factory=dict)


class Reference(Frozen):
    """A model shown beside the merged one, such as a jointly trained upper baseline."""

    name: Literal["multitask", "kd4mtl"]
    weights: str


class Expert(Sparse):
    """A fine-tuned model, the task it was tuned on, and how."""

    name: str = Field(pattern=SAFE_NAME)
    task: str
    weights: str
    source: str = ""
    licence: str = ""
    method: Annotated[str, LATER] = Field(STANDARD, pattern=SAFE_NAME)  # the recipe of fine-tuning
    forward: Annotated[Forward, LATER] = "standard"  # how the weights are meant to be evaluated
    factors: Annotated[str | None, LATER] = None  # a file of low-rank factors whose products are the task vector
    base: Annotated[str | None, LATER] = None  # the weights it starts from, where that is not the zoo's base
    aligned: Annotated[str, LATER] = ""  # how its units were ordered like the zoo's base's


class Task(Sparse):
    """A classification task: its images, its class names in head order, its prompts."""

    name: str = Field(pattern=SAFE_NAME)
    title: str = ""
    domain: Literal["in", "out"]
    shifted_from: str | None = None
    data: str | None = None
    classes: tuple[str, ...] = ()  # in head order; none where a task has neither head nor images
    templates: Templates = ()  # in zoo.yaml also the name of a published set
    template_set: Annotated[str, LATER] = ""  # the published set that they are of; '' for own ones
    words: Annotated[Words, LATER] = Field(default_factory=dict)
    source: str = ""
    licence: str = ""
    # A row of the catalogue of data sets: what is left out above is taken from it.
    dataset: Annotated[str | None, LATER] = None
    root: Annotated[str | None, LATER] = None  # folder of torchvision's data sets, inside the zoo
    # The measure that the task is published with.
    measure: Annotated[Literal["accuracy", "matthews", "f1", "pearson", "spearman"], LATER] = "accuracy"
    # The numbers that classes stand for, rising: a text is graded, and answers are scored by correlation alone.
    grades: Annotated[tuple[float, ...], LATER] = ()
    prompt: Annotated[str, LATER] = Field("", max_length=10_000)  # a text is made of: columns stand in braces
    split: Annotated[str, LATER] = ""  # of a data set on the hub, where none is known for it and it is not `test`
    corrupt: Annotated[Literal["error", "skip"], LATER] = "error"  # what to do about images that cannot be decoded

    @property
    def role(self) -> Literal["in", "out", "shifted"]:
        """Return the domain; ``shifted`` for another task's classes in other images, which no average counts."""
        return "shifted" if self.shifted_from else self.domain

    @model_validator(mode="before")
    @classmethod
    def _from_catalogue(cls, value: Any) -> Any:
        """Fill in what the catalogue knows of the data set."""
        if not isinstance(value, dict):
            return value
        grades = value.get("grades")
        if isinstance(grades, list | tuple) and grades and not value.get("classes"):
            numbers = [grade for grade in grades if isinstance(grade, int | float)]
            value = {**value, "classes": spelled(numbers)}
        if not isinstance(value.get("dataset"), str):
            if isinstance(asked := value.get("templates"), str) or (asked := value.get("template_set")):
                raise ValueError(f"the templates '{asked!s:.60}' are those of a data set; name it as `dataset:`")
            return value
        try:
            row = known_dataset(value["dataset"])
        except ZooError as error:
            raise ValueError(str(error)) from error
        known = {"title": row.title, "classes": row.classes, "licence": row.licence}
        known["source"] = ", ".join(part for part in (row.paper, row.homepage) if part)
        return {**known, **value, **prompts_of(value, row)}

    @field_validator("classes")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            twice = next(name for name in value if value.count(name) > 1)
            raise ValueError(f"the class '{twice}' is listed twice")
        if len(value) == 1:
            raise ValueError(f"the class '{value[0]}' is the only one; a task needs two or more")
        return value

    @model_validator(mode="after")
    def _named(self) -> Task:
        if self.data and not self.classes:
            raise ValueError(f"task '{self.name}' has images but lists no `classes`")
        if strange := [name for name, words in self.words.items() if name not in self.classes or not words]:
            raise ValueError(f"task '{self.name}' has no class '{strange[0]:.60}' that `words` could name")
        if self.grades and (len(self.grades) != len(self.classes) or list(self.grades) != sorted(set(self.grades))):
            raise ValueError(f"task '{self.name}' needs as many `grades` as classes, each above the one before")
        if self.grades and self.measure not in ("pearson", "spearman"):
            raise ValueError(f"task '{self.name}' is graded; its `measure` is pearson or spearman")
        return self

    @property
    def label(self) -> str:
        """Return the title, or the name where there is none."""
        return self.title or self.name

    @property
    def prompts_label(self) -> str:
        """Return the prompts for people: whose they are, and how many templates."""
        return prompts_in_words(self.template_set, self.templates)


class Published(Frozen):
    """Accuracies that a zoo's authors published, to be compared with measured ones."""

    source: str
    url: str = ""
    accuracy: dict[Literal["pretrained", "expert"], dict[str, float]]  # state → task → percent


class Manifest(Sparse):
    """A zoo: one base, experts fine-tuned from it, and the tasks they are judged on."""

    format: Literal[1]
    name: str = Field(pattern=SAFE_NAME)
    title: str = ""
    description: str = ""
    modality: Annotated[Literal["image", "text"], LATER] = "image"
    backbone: Backbone
    references: tuple[Reference, ...] = ()
    experts: tuple[Expert, ...] = ()
    tasks: tuple[Task, ...] = ()
    heads: str | None = None
    # The set for tasks of known data sets that name none; it is written at each task.
    templates: Annotated[Literal["openai", "fusionbench"] | None, LATER] = None
    published: Annotated[Published | None, LATER] = None

    @model_validator(mode="before")
    @classmethod
    def _same_templates(cls, value: Any) -> Any:
        """Hand the set that all tasks share to those that it is known for."""
        if not isinstance(value, dict) or not isinstance(name := value.get("templates"), str):
            return value
        tasks = value.get("tasks")
        if not isinstance(tasks, list | tuple):
            return value
        return {**value, "tasks": [with_set(task, name) for task in tasks]}

    @model_validator(mode="after")
    def _free_names(self) -> Manifest:
        if taken := [expert.name for expert in self.experts if expert.name in RESERVED]:
            raise ValueError(f"an expert is named '{taken[0]}', which stands for another model; rename it")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        for what, names in (
            ("expert", [e.name for e in self.experts]),
            ("task", [t.name for t in self.tasks]),
            ("expert of task and recipe", [f"{e.task}, {e.method}" for e in self.experts]),
        ):
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise ValueError(f"two entries for {what} '{twice[0]}'")
        tasks = {task.name: task for task in self.tasks}
        if tasks:
            for expert in self.experts:
                if expert.task not in tasks:
                    raise ValueError(f"expert '{expert.name}' names the task '{expert.task}', which is not listed")
        if self.modality == "text" and (self.backbone.tokenisation is None or self.backbone.preprocess is not None):
            raise ValueError("a zoo of texts states how texts are read as `tokenisation`, and no `preprocess`")
        if self.modality != "text" and self.backbone.tokenisation is not None:
            raise ValueError("only a zoo of texts has a `tokenisation`; add `modality: text` or remove it")
        for task in self.tasks:
            if task.shifted_from is not None and task.shifted_from not in tasks:
                raise ValueError(f"task '{task.name}' is shifted from '{task.shifted_from}', which is not listed")
        return self

    @cached_property
    def task_table(self) -> dict[str, Task]:
        """Return tasks by name."""
        return {task.name: task for task in self.tasks}

    @cached_property
    def expert_table(self) -> dict[str, Expert]:
        """Return experts by name."""
        return {expert.name: expert for expert in self.experts}

    def expert_of(self, task: str, method: str | None = None) -> Expert | None:
        """Return the expert fine-tuned on a task by a recipe, the first listed by default; None where there is none."""
        return next(
            (expert for expert in self.experts if expert.task == task and method in (None, expert.method)), None
        )


def locate_zoo(zoo: str) -> Path:
    """Find a zoo by the name of a bundled one, or by a path to a folder, its zoo.yaml, or a description.

    Returns:
        The zoo's folder; of a description whose files have not been fetched yet, the description itself.

    Raises:
        ZooError: there is none, with the names of those there are.
    """
    path = locate_description(zoo)
    made = made_folder(path)
    return made if (made / "zoo.yaml").is_file() else path


def locate_description(zoo: str) -> Path:
    """Find a zoo as :func:`locate_zoo` does, but of a description itself, whether its zoo has been made or not.

    Raises:
        ZooError: there is none.
    """
    try:
        found = _description(zoo)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        found = None
    if found is not None:
        return found
    if zoo in {path.stem for path in (ASSETS / "derived").glob("*.yaml")}:
        raise ZooError(
            f"The zoo '{zoo}' has to be made first: `python -m engine zoo build {zoo} --out DIR`; then name DIR."
        )
    meant = nearest(zoo, [listed.name for listed in known_zoos()])
    raise ZooError(f"There is no zoo '{zoo:.200}', nor a folder of that name with a zoo.yaml. {meant}")


def manifest_file(place: Path) -> Path:
    """Return the YAML file of a zoo's folder, or the description itself."""
    return place if place.suffix in (".yaml", ".yml") else place / "zoo.yaml"


def cache_folder() -> Path:
    """Return the folder of what was fetched: MERGELENS_CACHE, else the user's cache folder."""
    if given := os.environ.get(ENV_CACHE):
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mergelens"


def made_folder(place: Path) -> Path:
    """Return the folder of a described zoo once its files have been fetched and converted.

    A description that changes gets another folder, and so does one that lies elsewhere, beside other files.
    """
    file = manifest_file(place)
    digest = "none"  # also of what is too large to be a manifest, which reading it will say
    with contextlib.suppress(OSError):
        found = file.stat()
        if found.st_size <= MAX_RECIPE_BYTES:
            digest = _digest_of(file, found.st_size, found.st_mtime_ns)
    stem = file.stem if file.name != "zoo.yaml" else file.parent.name
    return cache_folder() / "zoos" / f"{stem}-{digest}"


@lru_cache(maxsize=1_000)
def _digest_of(file: Path, size: int, modified: int) -> str:
    """Return the digest of a description in this state, and of its place for the engine unless it came with the app."""
    place = "" if file.is_relative_to(ASSETS) else str(there(file))
    return hashlib.sha256(file.read_bytes() + place.encode(errors="surrogateescape")).hexdigest()[:8]


def _description(zoo: str) -> Path | None:
    """Return the folder or the description that a name or path stands for; None where there is none."""
    if "/" not in zoo:
        bundled = ASSETS / "zoos" / zoo
        for found in (bundled, bundled.with_name(f"{zoo}.yaml")):
            if manifest_file(found).is_file():
                return found
    path = Path(zoo).expanduser()
    if path.name == "zoo.yaml":
        path = path.parent
    if path.suffix in (".yaml", ".yml") and path.is_file() and path.stat().st_size:
        return path.resolve()
    return path.resolve() if (path / "zoo.yaml").is_file() else None


@dataclass(frozen=True)
class KnownZoo:
    """A zoo that comes with the app."""

    name: str
    described: bool  # a description: its files are fetched when somebody asks for it
    ready: bool  # its files are here


def known_zoos() -> list[KnownZoo]:
    """List the zoos that come with the app: those with their files first, then descriptions."""
    described = sorted((ASSETS / "zoos").glob("*.yaml"), key=lambda path: path.stem)
    ready = [KnownZoo(name, False, True) for name in bundled_zoos()]
    return ready + [KnownZoo(p.stem, True, (made_folder(p) / "zoo.yaml").is_file()) for p in described]


def bundled_zoos() -> list[str]:
    """Return the names of the zoos whose files come with the app."""
    return sorted(path.parent.name for path in (ASSETS / "zoos").glob("*/zoo.yaml"))


def read_manifest(folder: Path) -> Manifest:
    """Read and check a zoo's manifest (of a folder, or a description); files it names must lie inside the folder.

    Raises:
        ZooError: naming the key or the path at fault.
    """
    path = manifest_file(folder)
    try:
        stamp = path.stat()
    except OSError as error:
        raise ZooError(f"The manifest {path} cannot be read: {error.strerror}.") from error
    manifest = _parse_manifest(path, stamp.st_mtime_ns, stamp.st_size)
    for named in named_files(manifest):
        resolve_inside(path.parent, named)
    return manifest


@lru_cache(maxsize=PARSED)
def _parse_manifest(path: Path, modified: int, size: int) -> Manifest:
    """Parse a manifest once for every state of its file: each step of a run opens the zoo again."""
    document: Any = read_yaml(path, ZooError, "manifest")
    if not isinstance(document, dict):
        raise ZooError("zoo.yaml holds no mapping; it needs keys such as `format`, `name`, `backbone`, `experts`.")
    try:
        return Manifest.model_validate(document)
    except ValidationError as error:
        raise ZooError(f"zoo.yaml cannot be used: {explain(error, Manifest)}") from error


def resolve_inside(folder: Path, relative: str) -> Path:
    """Resolve a path that a manifest names.

    Raises:
        ZooError: it leaves the zoo's folder, also through a symbolic link.
    """
    root = folder.resolve()
    if "\0" in relative or len(relative) > MAX_PATH:
        raise ZooError(f"zoo.yaml names {relative[:60]!r}, which is no path.")
    try:
        path = (root / relative).resolve()
    except (OSError, RuntimeError) as error:  # links that lead to themselves
        raise ZooError(f"zoo.yaml names '{relative}', which cannot be followed: {error}.") from error
    if Path(relative).is_absolute() or not path.is_relative_to(root):
        raise ZooError(
            f"zoo.yaml names '{relative}', which lies outside the zoo's folder. Move the file into the folder."
        )
    return path


def named_files(manifest: Manifest) -> list[str]:
    """Return the paths that a manifest names inside the zoo's folder."""
    named = [model.weights for model in (*manifest.experts, *manifest.references)]
    named += [path for expert in manifest.experts for path in (expert.factors, expert.base) if path]
    named += [task.data for task in manifest.tasks if task.data]
    named += [manifest.heads] if manifest.heads else []
    backbone = manifest.backbone
    named += [path for path in (backbone.architecture, backbone.weights) if "." in path]
    named += [backbone.tokenisation.vocabulary] if backbone.tokenisation else []
    return [path for path in named if not path.startswith(ELSEWHERE)]
