"""A recipe: everything a run is asked for, in one small document.

The plain recipe says what a person wants; :func:`engine.catalog.resolve` writes the defaults out, so that a run's
identity never depends on what a default happened to be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from .errors import RecipeError, nearest

SCHEMA_VERSION = 1
SEEDS = 2**32  # that there are: generators of random numbers know more, and methods multiply some
REFERENCE_STATES = ("multitask", "kd4mtl")  # jointly trained models that a zoo may bring: plainly, and by imitation
RESERVED_STATES = ("pretrained", "merged", "expert", *REFERENCE_STATES, "corrected")
TIMED = ("merge", "features")  # parts of a run beside calibrators whose seconds a report lists
MAX_RECIPE_BYTES = 1_000_000
MAX_ALIASES = 100
MAX_EXPANDED = 500_000  # values and, for long texts, 100 characters each: aliases written out

WORDS = {  # for people, of kinds of pydantic's findings that speak of Python
    "tuple_type": "expected a list",
    "too_short": "expected at least {min_length} entries",
    "too_long": "expected at most {max_length} entries",
    "model_type": "expected a mapping of the keys {fields}",
}

Protocol = Literal["held_out", "paper"]


_Quick = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where PyYAML was built with it


class _Loader(yaml.composer.Composer, _Quick):
    """YAML without YAML 1.1's yes/no/on/off booleans: `on: pretrained` is a key of a calibrator.

    libyaml scans and parses, ten times as fast as Python; nodes are composed by PyYAML's own Python, which refuses a
    document that is nested too deeply where libyaml's composer would overflow the stack.
    """

    def __init__(self, text: str) -> None:
        _Quick.__init__(self, text)
        yaml.composer.Composer.__init__(self)

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        """Compose a mapping; of a key that stands twice PyYAML would silently drop the first value."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        for key in keys:
            if (key.tag, key.value) in seen:
                raise yaml.composer.ComposerError(None, None, f"the key '{key.value}' stands twice", key.start_mark)
            seen.add((key.tag, key.value))
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))


class Frozen(BaseModel):
    """Base of every document model: immutable, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Later:
    """Marker of a field that documents got after some without it had been hashed."""


LATER = Later()


class Sparse(Frozen):
    """A document whose hash outlives fields that it gets later: they are written only where they are used."""

    @model_serializer(mode="wrap")
    def _without_unused(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out later fields that hold their default."""
        document = handler(self)
        for name, field in type(self).model_fields.items():
            if LATER in field.metadata and getattr(self, name) == field.get_default(call_default_factory=True):
                document.pop(name, None)
        return document


class MethodCall(Frozen):
    """A transform or merge method by name, with its parameters."""

    method: str
    params: dict[str, Any] = Field(default_factory=dict)


class CalibratorCall(MethodCall):
    """A calibrator: alternatives in a recipe, never a chain."""

    name: str = Field("", pattern=r"^[a-z0-9_]{0,40}$")
    on: Literal["merged", "pretrained"] = "merged"

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, value: Any) -> Any:
        if isinstance(value, dict) and not value.get("name"):
            value = {**value, "name": value.get("method", "")}
        return value


# How experts and their merge are evaluated: by the encoder, or by its first-order approximation around the base.
Forward = Literal["standard", "linearised"]


class ExpertChoice(Frozen):
    """An expert and how much of its task vector takes part."""

    name: str
    weight: float = Field(1.0, ge=-2, le=2)


class Probe(Frozen):
    """The images that are looked at, and those of them that a method may adapt on."""

    samples_per_task: int | Literal["all"] = "all"
    protocol: Protocol = "held_out"
    split_seed: int = Field(0, ge=0)

    @field_validator("samples_per_task")
    @classmethod
    def _at_least_two(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 2:
            raise ValueError("at least 2 images a task are needed")
        return value


class Recipe(Sparse):
    """Everything that a run is asked for."""

    schema_version: Literal[1] = SCHEMA_VERSION
    zoo: str = "mini8"
    experts: Literal["all"] | tuple[ExpertChoice, ...] = "all"
    transforms: tuple[MethodCall, ...] = ()
    merge: MethodCall = MethodCall(method="task_arithmetic")
    calibrators: tuple[CalibratorCall, ...] = ()
    probe: Probe = Probe()
    seeds: tuple[int, ...] = (0,)
    forward: Annotated[Forward, LATER] = "standard"

    @field_validator("experts", mode="before")
    @classmethod
    def _names_are_choices(cls, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [{"name": item} if isinstance(item, str) else item for item in value]
        return value

    @field_validator("seeds")
    @classmethod
    def _some_seed(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or len(set(value)) != len(value) or min(value) < 0 or max(value) >= SEEDS:
            raise ValueError(f"seeds must be distinct whole numbers from 0 to {SEEDS - 1:,}, at least one")
        return value

    @model_validator(mode="after")
    def _distinct_names(self) -> Recipe:
        names = [call.name for call in self.calibrators]
        for name in names:
            if name in RESERVED_STATES:
                raise ValueError(f"a calibrator cannot be named '{name}': that is the name of a state")
            if name in TIMED:
                raise ValueError(f"a calibrator cannot be named '{name}': that is the name of another part of a run")
            if names.count(name) > 1:
                raise ValueError(f"two calibrators are named '{name}': give one of them another `name`")
        if self.experts != "all":
            chosen = [expert.name for expert in self.experts]
            if len(set(chosen)) != len(chosen):
                raise ValueError("an expert is named twice")
            if not chosen:
                raise ValueError("no expert is chosen")
        return self

    def to_yaml(self) -> str:
        """Render the recipe as YAML in the order of the documentation."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    def to_json(self) -> str:
        """Render the recipe as canonical JSON (sorted keys), the form that is hashed."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)


def parse_recipe(document: Any, *, origin: str = "recipe") -> Recipe:
    """Validate a recipe document.

    Args:
        document: the parsed YAML or JSON.
        origin: what to call it in an error.

    Returns:
        The recipe, defaults of unnamed method parameters not yet written out.

    Raises:
        RecipeError: with the place, what was found and the nearest valid name.
    """
    if not isinstance(document, dict):
        what = "empty" if document is None else f"a {type(document).__name__}"
        raise RecipeError(f"The {origin} is {what}; a mapping of keys such as `merge:` is needed.")
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"The {origin} cannot be used: {explain(error, Recipe)}") from error


def read_recipe(path: Path) -> Recipe:
    """Read a recipe file (YAML or JSON).

    Raises:
        RecipeError: the file is missing, too large, not YAML, or not a recipe.
    """
    return parse_recipe(read_yaml(path, RecipeError, "recipe"), origin=f"recipe {path.name}")


def read_yaml(path: Path, error_type: type[Exception], what: str, *, several: bool = False) -> Any:
    """Read a YAML document with caps on size and aliases; objects are never constructed.

    Args:
        path: the file.
        error_type: of the error that is raised.
        what: the file is, for that error.
        several: return the list of all documents of the file.

    Raises:
        error_type: naming the file and what is wrong with it.
    """
    try:
        size = path.stat().st_size
        text = "" if size > MAX_RECIPE_BYTES else path.read_text("utf-8")
    except OSError as error:
        raise error_type(f"The {what} {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise error_type(f"The {what} {path.name} is not valid YAML: it is no text in UTF-8.") from error
    if size > MAX_RECIPE_BYTES:
        raise error_type(f"The {what} {path.name} has {size:,} bytes; at most {MAX_RECIPE_BYTES:,} are read.")
    try:
        aliases = (token for token in yaml.scan(text, _Loader) if isinstance(token, yaml.AliasToken))
        if text.count("*") > MAX_ALIASES and sum(1 for _ in aliases) > MAX_ALIASES:
            raise error_type(f"The {what} {path.name} uses more than {MAX_ALIASES} YAML aliases.")
        loaded = yaml.load_all if several else yaml.load
        found = loaded(text, Loader=_Loader)  # a SafeLoader: no objects
        found = list(found) if several else found
        if _expanded(found, {}) > MAX_EXPANDED:
            raise error_type(
                f"The {what} {path.name} repeats parts by YAML aliases to more than {MAX_EXPANDED:,} values."
            )
        return found
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
        # PyYAML lets the errors of its own conversions through, such as `!!timestamp x` or `!!bool x`.
        raise error_type(f"The {what} {path.name} is not valid YAML: {yaml_fault(error):.300}.") from error


def yaml_fault(error: Exception) -> str:
    """Return what is wrong with a text that is no YAML in one line, and in which line of the text."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return (str(error).splitlines() or [type(error).__name__])[0]


def _expanded(value: Any, known: dict[int, int]) -> int:
    """Count the values of a document with its aliases written out; an alias to what it is part of counts as endless."""
    if isinstance(value, str):
        return 1 + len(value) // 100
    if not isinstance(value, (dict, list, set)):
        return 1
    if id(value) not in known:
        known[id(value)] = MAX_EXPANDED  # as long as it is being counted: whoever meets it again is inside it
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_expanded(part, known) for part in parts)
    return known[id(value)]


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Turn pydantic's findings into sentences that name the place and the nearest valid key."""
    return " ".join(dict.fromkeys(explain_item(item, model) for item in error.errors()[:5]))


def explain_item(item: Mapping[str, Any], model: type[BaseModel]) -> str:
    """Turn one of pydantic's findings into a sentence that names the place and the nearest valid key."""
    place = ".".join(str(part) for part in item["loc"] if not str(part).startswith(("tuple[", "literal[", "dict[")))
    if item["type"] == "extra_forbidden":
        options = _fields_at(model, item["loc"][:-1])
        return f"unknown key '{_shortened(place)}'. {nearest(str(item['loc'][-1]), options)}"
    if item["type"] == "missing":
        return f"'{place}' is missing."
    words = WORDS.get(item["type"])
    fields = ", ".join(_fields_at(model, item["loc"]))
    said = words.format(**item.get("ctx", {}), fields=fields) if words else item["msg"].removeprefix("Value error, ")
    message = _shortened(said)
    found = "" if isinstance(item["input"], dict) else f" (found {item['input']!r:.80})"
    end = "" if not found and message.endswith((".", "?")) else "."
    return f"'{place}': {message}{found}{end}" if place else f"{message}{end}"


class Request(Frozen):
    """Base of what the engine is asked for beside runs."""

    REFUSAL: ClassVar[str] = "The request cannot be used"  # begins the message where one is not valid

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """Validate a request.

        Raises:
            RecipeError: naming the place at fault.
        """
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise RecipeError(f"{cls.REFUSAL}: {explain(error, cls)}") from error


def _shortened(text: str, most: int = 500) -> str:
    """Shorten a text that quotes what somebody wrote, which may be of any length."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 4 :]}"


def _fields_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Return the names of the fields valid at a location inside a model, as far as the location can be followed."""
    current: type[BaseModel] = model
    for part in location:
        field = current.model_fields.get(part) if isinstance(part, str) else None
        if field is None:
            continue
        current = _model_in(field.annotation) or current
    return list(current.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the first document model inside an annotation such as ``tuple[Model, ...] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in getattr(annotation, "__args__", ()):
        found = _model_in(part)
        if found:
            return found
    return None
