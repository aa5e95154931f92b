"""Occlusion: how far each word of a text moves the feature, in the merged model and in the task's expert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...catalog import MERGE_METHODS
from ...errors import RecipeError
from ..steps import SHARE, step
from ..viewing.anew import merge_alone
from ..viewing.base import View
from ..viewing.by_task import ImagesRequest, ModelInputs, TaskParams, plan_by_task
from ..viewing.opening import Opening, Settings, of_worst_task
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    import torch

    from ..run.plan import RunSteps
    from ..tools import StepTools

BATCH = 256  # texts with a hidden word
DECIMALS = 4
WORDS = 12  # of a text, about; what the time is foreseen from


class OcclusionRequest(ImagesRequest):
    """Request to hide words."""

    REFUSAL = "Words cannot be hidden"


def plan(run: RunSteps, asked: OcclusionRequest) -> str:
    """Plan the occlusion of each task's texts.

    Raises:
        RecipeError: no texts of an expert's task, or weights that change from text to text.
    """
    row = MERGE_METHODS[run.recipe.merge.method]
    if not run.zoo.modality.parts:
        raise RecipeError(f"Words are hidden one after another; this zoo is one of {run.zoo.modality.many}.")
    if row.yields == "per_sample":
        raise RecipeError(f"{row.title} makes other weights for every text. Choose a static merge or one by task.")
    return plan_by_task(run, occlusion, asked, "Hiding words of {}", {})


@step("occlusion", label="Hiding words", params=TaskParams, inputs=ModelInputs, cost=6.0, gpu=True, threads=SHARE)
def occlusion(inputs: ModelInputs[Path], params: TaskParams, output: Path, tools: StepTools) -> None:
    """Hide each word of some texts in turn and measure how far features move; writes ``occlusion.json``.

    ``texts`` is a list of ``index`` (row in the test split), ``label``, ``words`` and, by state (``expert``,
    ``merged``, ``pretrained``), the cosine distance 1 − cos of the feature to the one with the word hidden. ``alike``:
    the mean over texts of Pearson's correlation of a state's distances with the expert's (``merged``, ``pretrained``).
    """
    from ..viewing.models import Models, images_of

    zoo, task = params.sources.open(), params.task
    texts = images_of(zoo, task, params.probe, params.images)
    models = Models(zoo, inputs, task, texts.device)
    parts = [zoo.modality.occluded(row, zoo.preprocess()) for row in texts.pixels]
    names = {"expert": params.expert, "merged": "merged", "pretrained": "pretrained"}
    moved: dict[str, list[np.ndarray]] = {}
    for number, (state, name) in enumerate(names.items()):
        part = tools.part(number / len(names), (number + 1) / len(names))
        moved[state] = _moved(models.encoder(name), texts.pixels, parts, lambda done, part=part: part(done, task))
    labels = zoo.data[task].labels("test")[texts.rows]
    words = zoo.data[task].words(texts.pixels.numpy())
    found: list[dict[str, Any]] = []
    for number, (index, label) in enumerate(zip(texts.rows.tolist(), labels.tolist(), strict=True)):
        distances = {state: values[number].round(DECIMALS).tolist() for state, values in moved.items()}
        found.append({"index": index, "label": label, "words": words[number], **distances})
    alike = {state: _alike(moved[state], moved["expert"]) for state in ("merged", "pretrained")}
    document = {"texts": found, "alike": alike, "images": len(found), "available": texts.available}
    (output / "occlusion.json").write_text(json.dumps(document, ensure_ascii=False))


def _moved(encoder: torch.nn.Module, rows: torch.Tensor, parts: list[Any], report: Any) -> list[np.ndarray]:
    """Return, for each text, the cosine distances (k,) of its feature to those with a word hidden."""
    import torch
    from torch.nn import functional

    device = next(encoder.parameters()).device
    every, owners = torch.cat([hidden for _, hidden in parts]), [len(places) for places, _ in parts]
    with torch.no_grad():
        whole = functional.normalize(torch.cat([encoder(part.to(device)).cpu() for part in rows.split(BATCH)]), dim=-1)
        batches = every.split(BATCH)
        features = []
        for number, batch in enumerate(batches):
            report(number / len(batches))
            features.append(functional.normalize(encoder(batch.to(device)).cpu(), dim=-1))
    own = whole.repeat_interleave(torch.tensor(owners), dim=0)
    away = (1 - (own * torch.cat(features)).sum(-1)).clamp(min=0)
    return [part.numpy() for part in away.split(owners)]


def _alike(left: list[np.ndarray], right: list[np.ndarray]) -> float | None:
    """Return the mean over texts of Pearson's correlation; None where no text's distances vary."""
    found = [
        float(np.corrcoef(a, b)[0, 1]) for a, b in zip(left, right, strict=True) if len(a) > 2 and a.std() and b.std()
    ]
    return float(np.mean(found)) if found else None


def work(asked: OcclusionRequest, sizes: Sizes) -> Work:
    """Return what the texts take through three models, whole and with each word hidden."""
    return Work(passes=3 * (1 + WORDS) * sizes.looked_at(asked.images, asked.task))


def _opened(opening: Opening) -> Settings:
    """Ask for the task that loses most, where samples have parts that can be hidden."""
    return of_worst_task(300)(opening) if opening.kind.parts else []


OCCLUSION = View(
    "occlusion",
    "Words that move the feature",
    OcclusionRequest,
    plan,
    reduced=merge_alone,
    work=work,
    needs="merge",
    opens=_opened,
)
