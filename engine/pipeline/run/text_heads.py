"""The step that builds heads from a zoo's text encoder, where the zoo brings none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ...manifest import Task
from ...store import Store
from ...zoo.encoders.backbone import architecture
from ...zoo.encoders.heads import base_logit_scale
from ...zoo.encoders.text import build_heads, templates_of, vocabulary_file
from ...zoo.folder import Zoo
from ..steps import Step, make_step

if TYPE_CHECKING:
    from ..steps import StepTools

FILE = "heads.safetensors"


def heads_step(zoo: Zoo, store: Store, base: str) -> Step:
    """The step for all tasks of a zoo; its key holds the base, the text side of the architecture and the prompts.

    Args:
        zoo: a zoo without heads, with a text encoder.
        store: gives digests.
        base: digest of the base.
    """
    config = architecture(zoo.folder, zoo.manifest)
    words = vocabulary_file(zoo.folder, zoo.manifest)
    identity = {
        "base": base,
        "text": {name: config.get(name) for name in ("embed_dim", "text_cfg", "quick_gelu")},
        "vocabulary": store.digest_file(words) if words else None,
        "tasks": {task.name: _identity(task) for task in zoo.manifest.tasks},
    }
    params = {**identity, "sources": {"zoo": str(zoo.folder)}}
    return make_step(
        "heads", params=params, identity=identity, label="Building heads from the text encoder", weight=2.0
    )


def build(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Build the heads; writes ``heads.safetensors`` with one (classes, dim) tensor a task and ``logit_scale``."""
    zoo = Zoo.open(params["sources"]["zoo"])

    def cached(task: Task, compute: Callable[[], Tensor]) -> Tensor:
        parts = {
            "quantity": "head",
            **{name: params[name] for name in ("base", "text", "vocabulary")},
            **_identity(task),
        }
        return tools.cached(parts, lambda: {"head": compute()})["head"]

    heads = build_heads(zoo.folder, zoo.manifest, list(params["tasks"]), tools.progress, cached)
    scale = torch.tensor(base_logit_scale(zoo.folder, zoo.manifest))
    save_file({**{name: head.contiguous() for name, head in heads.items()}, "logit_scale": scale}, output / FILE)


def _identity(task: Task) -> dict[str, Any]:
    return {"classes": list(task.classes), "templates": list(templates_of(task))}
