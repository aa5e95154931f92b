"""Transplants: a task's expert's parts put into the merged model, and the merged model's into the expert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...catalog import MERGE_METHODS
from ...errors import RecipeError
from ..steps import SHARE, apart, step
from ..viewing.anew import merge_alone
from ..viewing.base import View
from ..viewing.by_task import ImagesRequest, ModelInputs, TaskParams, another, need_blocks, plan_by_task
from ..viewing.opening import of_worst_task
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from torch import nn

    from ..run.plan import RunSteps
    from ..tools import StepTools

KINDS = 4  # of exchanges in a block: all of it, attention, MLP, norms


class TransplantRequest(ImagesRequest):
    """Request to put an expert's parts into a merged model."""

    REFUSAL = "The parts cannot be exchanged"


class TransplantParams(TaskParams):
    """Parameters of exchanging parts on one task."""

    other: str = apart()  # another task's expert, the control; empty where there is one expert
    other_digest: str


def plan(run: RunSteps, asked: TransplantRequest) -> str:
    """Plan the exchange of parts between the merged model and each task's expert.

    Raises:
        RecipeError: no images or heads of an expert's task of classes, or weights that change from image to image.
    """
    row = MERGE_METHODS[run.recipe.merge.method]
    if row.yields == "per_sample":
        raise RecipeError(
            f"{row.title} makes other weights for every image, so there are no parts to exchange. "
            "Choose a run with a static merge or one by task."
        )
    need_blocks(run, "exchange parts of")

    def own(task: str) -> dict[str, Any]:
        other = another(run, task)
        return {"other": other, "other_digest": run.digests.get(other, "")}

    def beside(task: str) -> list[str]:
        return [name for name in (another(run, task),) if name]

    return plan_by_task(run, transplant, asked, "Exchanging parts on {}", {}, own, beside, right=True)


@step(
    "transplant",
    label="Exchanging parts",
    params=TransplantParams,
    inputs=ModelInputs,
    cost=6.0,
    gpu=True,
    threads=SHARE,
)
def transplant(inputs: ModelInputs[Path], params: TransplantParams, output: Path, tools: StepTools) -> None:
    """Exchange parts between the merged model and one task's expert, one at a time; writes ``transplant.json``.

    ``parts`` is a list of ``block`` (from 1; 0 the embedding, blocks + 1 the read-out), ``kind`` (``block``,
    ``attention``, ``mlp``, ``norm``, ``embedding``, ``read-out``), ``parameters``, and the images (n,) that the models
    are right for, as :func:`engine.analysis.written.write_array` writes them: ``given`` (the merged model with the
    expert's part), ``other`` (with another task's expert's part: the control, of whole parts), ``taken`` (the expert
    with the merged model's part). ``right``: the same of ``pretrained``, ``merged`` and ``expert`` as they are.
    """
    from ...analysis.written import write_array
    from ...features.parts import WHOLE, parts_of, transplanted
    from ..viewing.models import Models, pictures_of

    zoo, task = params.sources.open(), params.task
    pictures = pictures_of(zoo, task, params.probe, params.images)
    models = Models(zoo, inputs, task, pictures.device)
    merged, expert = models.encoder("merged"), models.encoder(params.expert)
    other = models.encoder(params.other) if params.other else None
    whole = {"pretrained": models.encoder("pretrained"), "merged": merged, "expert": expert}
    right = {name: write_array(pictures.right(encoder)) for name, encoder in whole.items()}
    donors = [("given", merged, expert), ("other", merged, other), ("taken", expert, merged)]
    listed, parts = parts_of(expert, zoo.modality.layout_of(params.architecture)), []
    for number, (block, kind, names) in enumerate(listed):
        tools.progress(number / len(listed), f"{task}, {kind} {block}")
        part: dict[str, Any] = {"block": block, "kind": kind, "parameters": _count(expert, names)}
        for name, host, donor in donors:
            if donor is not None and (name != "other" or kind in WHOLE):
                with transplanted(host, donor, names):
                    part[name] = write_array(pictures.right(host))
        parts.append(part)
    document = {
        "parts": parts,
        "right": right,
        "other": params.other,
        "index": write_array(pictures.rows.astype(np.int32)),
        "labels": write_array(pictures.labels.astype(np.int16)),
        "images": len(pictures.labels),
        "available": pictures.available,
    }
    (output / "transplant.json").write_text(json.dumps(document))


def _count(encoder: nn.Module, names: tuple[str, ...]) -> int:
    table = dict(encoder.named_parameters())
    return sum(table[name].numel() for name in names)


def work(asked: TransplantRequest, sizes: Sizes) -> Work:
    """Return what the images take through a model for each part that is given, taken or another expert's."""
    parts, whole = KINDS * sizes.blocks + 2, sizes.blocks + 2
    return Work(passes=(2 * parts + whole + 3) * sizes.looked_at(asked.images, asked.task))


TRANSPLANT = View(
    "transplant",
    "Exchanged parts",
    TransplantRequest,
    plan,
    reduced=merge_alone,
    work=work,
    needs="merge",
    opens=of_worst_task(500),
)
