"""Prompt templates of zero-shot heads: published sets by name, own ones from a file, and what to call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from ..errors import ZooError, nearest
from ..recipe import MAX_RECIPE_BYTES, Frozen, explain, read_yaml

PROMPT_SETS = {"openai": "OpenAI's", "fusionbench": "FusionBench's"}  # name → for people
USUAL = "a photo of a {}."  # where nobody states a template
DOCUMENTS = (".yaml", ".yml", ".json")


def _with_a_place(templates: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a template without one place for the class name."""
    for template in templates:
        if template.count("{}") != 1:
            raise ValueError(f"the template '{template}' needs exactly one {{}}, where the class name goes")
    return templates


def _listed(value: Any) -> Any:
    """Return single words of classes as lists of one."""
    if not isinstance(value, Mapping):
        return value
    return {name: [words] if isinstance(words, str) else words for name, words in value.items()}


# Each with one {} where the class name goes.
Templates = Annotated[tuple[str, ...], AfterValidator(_with_a_place)]
# Class → its names in prompts, where they differ.
Words = Annotated[dict[str, tuple[str, ...]], BeforeValidator(_listed)]


class PromptSet(Frozen):
    """Templates of a data set or task, and what they call its classes."""

    templates: Templates = Field(min_length=1)
    words: Words = Field(default_factory=dict)
    source: str = ""  # where the facts are from


def prompts_in_words(template_set: str, templates: Sequence[str]) -> str:
    """Return what templates are, for people: whose, and how many.

    Args:
        template_set: a name of PROMPT_SETS, '' for own ones.
        templates: of a task; empty where it states none.
    """
    if not templates:
        return f"CLIP's usual template, “{USUAL}”"
    many = "1 template" if len(templates) == 1 else f"{len(templates)} templates"
    return f"{PROMPT_SETS[template_set]} {many}" if template_set else f"{many} of its own"


def read_prompt_file(path: Path) -> PromptSet | dict[str, PromptSet]:
    """Read a person's templates: for all tasks, or by task.

    Args:
        path: a text file with a template a line; or YAML or JSON, a list of templates for all tasks, or a mapping of
            tasks to such lists or to ``templates:`` and ``words:`` (class → its names in prompts).

    Raises:
        ZooError: it cannot be read, or holds no templates.
    """
    try:
        found = read_yaml(path, ZooError, "file of templates") if path.suffix in DOCUMENTS else _lines(path)
        if isinstance(found, Mapping):
            return {str(task): _own(value) for task, value in found.items()}
        return _own(found)
    except ValidationError as error:
        raise ZooError(
            f"The templates in {path.name} cannot be used: {explain(error, PromptSet)} Expected: a template a line; or "
            "YAML, a list of templates, or task: [templates]."
        ) from error


def _own(value: Any) -> PromptSet:
    return PromptSet.model_validate(value if isinstance(value, Mapping) else {"templates": value})


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > MAX_RECIPE_BYTES:
            raise ZooError(f"{path.name} has more than {MAX_RECIPE_BYTES:,} bytes; it is no list of templates.")
        return [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise ZooError(f"The file of templates {path} cannot be read: {reason}.") from error


def is_prompt_set(asked: str) -> bool:
    """Return whether a person's wish names a published set, not a file.

    Raises:
        ZooError: it names neither.
    """
    if asked in PROMPT_SETS:
        return True
    if not Path(asked).expanduser().is_file():
        hint = nearest(asked, PROMPT_SETS)
        raise ZooError(f"--templates '{asked:.200}' is neither a set of templates nor a file. {hint}")
    return False
