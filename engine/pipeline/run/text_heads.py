"""The step that builds heads from a zoo's text encoder, where the zoo brings none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor

from ...manifest import Task
from ...recipe import LATER, Sparse
from ...store import Store
from ...zoo.encoders.backbone import architecture
from ...zoo.encoders.heads import base_logit_scale
from ...zoo.encoders.text import build_heads, templates_of, vocabulary_file
from ...zoo.folder import Zoo
from ..sources import Sources
from ..steps import NoInputs, Step, StepParams, apart, step

if TYPE_CHECKING:
    from ..tools import StepTools

FILE = "heads.safetensors"


class Prompts(Sparse):
    """Class names and templates of one task."""

    classes: tuple[str, ...]
    templates: tuple[str, ...]
    words: Annotated[dict[str, tuple[str, ...]], LATER] = Field(default_factory=dict)


class HeadsParams(StepParams):
    """Parameters of the heads step."""

    base: str  # digest
    text: dict[str, Any]  # the text side of the architecture
    vocabulary: str | None  # digest of the zoo's own
    tasks: dict[str, Prompts]
    sources: Sources = apart()


def heads_step(zoo: Zoo, store: Store, base: str) -> Step:
    """Plan the heads of all tasks that have classes; the key holds base, text side of the architecture and prompts.

    Args:
        zoo: a zoo without heads, with a text encoder.
        store: gives digests.
        base: digest of the base.
    """
    config = architecture(zoo.folder, zoo.manifest)
    words = vocabulary_file(zoo.folder, zoo.manifest)
    params = HeadsParams(
        base=base,
        text={name: config.get(name) for name in ("embed_dim", "text_cfg", "quick_gelu")},
        vocabulary=store.digest_file(words) if words else None,
        tasks={task.name: _prompts(task) for task in zoo.manifest.tasks if task.classes},
        sources=Sources(zoo=str(zoo.folder)),
    )
    return heads.plan(params)


@step("heads", label="Building heads from the text encoder", params=HeadsParams, cost=2.0)
def heads(inputs: NoInputs[Path], params: HeadsParams, output: Path, tools: StepTools) -> None:
    """Build the heads; writes ``heads.safetensors`` with one (classes, dim) tensor a task and ``logit_scale``."""
    zoo = params.sources.open()
    text_side = params.model_dump(mode="json", include={"base", "text", "vocabulary"})

    def cached(task: Task, compute: Callable[[], Tensor]) -> Tensor:
        parts = {"quantity": "head", **text_side, **_prompts(task).model_dump(mode="json")}
        return tools.cached(parts, lambda: {"head": compute()})["head"]

    built = build_heads(zoo.folder, zoo.manifest, list(params.tasks), tools.progress, cached)
    scale = torch.tensor(base_logit_scale(zoo.folder, zoo.manifest))
    save_file({**{name: head.contiguous() for name, head in built.items()}, "logit_scale": scale}, output / FILE)


def _prompts(task: Task) -> Prompts:
    return Prompts(classes=tuple(task.classes), templates=tuple(templates_of(task)), words=dict(task.words))
