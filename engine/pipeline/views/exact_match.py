"""Exact match: how often a model that answers in words writes the very answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...catalog import MERGE_METHODS
from ...errors import RecipeError
from ..steps import SHARE, step
from ..viewing.anew import merge_alone
from ..viewing.base import View
from ..viewing.by_task import ImagesRequest, ModelInputs, TaskParams, plan_by_task
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools

BATCH = 32  # texts
LONGEST = 10  # tokens of an answer, as FusionBench generates


class ExactMatchRequest(ImagesRequest):
    """Request to let models write their answers."""

    REFUSAL = "Answers cannot be written"


def plan(run: RunSteps, asked: ExactMatchRequest) -> str:
    """Plan the writing of answers to each task's texts.

    Raises:
        RecipeError: the zoo's models do not answer in words, or their weights change from text to text.
    """
    if not run.zoo.modality.answers(run.zoo.manifest):
        raise RecipeError("Exact match is measured of models that answer in words, such as T5; this zoo's do not.")
    row = MERGE_METHODS[run.recipe.merge.method]
    if row.yields == "per_sample":
        raise RecipeError(f"{row.title} makes other weights for every text. Choose a static merge or one by task.")
    return plan_by_task(run, exact_match, asked, "Writing answers of {}", {})


@step("exact_match", label="Writing answers", params=TaskParams, inputs=ModelInputs, cost=6.0, gpu=True, threads=SHARE)
def exact_match(inputs: ModelInputs[Path], params: TaskParams, output: Path, tools: StepTools) -> None:
    """Let every state write the likeliest word after word for some texts; writes ``exact_match.json``.

    ``percent`` (state → texts whose answer is that of their class, letter by letter but for spaces around it), and
    ``texts``: ``index``, ``answer`` and what each state wrote.

    Source: exact match of greedily generated answers, at most 10 tokens, as FusionBench (arXiv:2406.03280) scores T5.
    """
    import torch

    from ...zoo.texts.pieces import Pieces
    from ..viewing.models import Models, images_of

    zoo, task = params.sources.open(), params.task
    texts = images_of(zoo, task, params.probe, params.images)
    models, words = Models(zoo, inputs, task, texts.device), zoo.data[task].vocabulary()
    if not isinstance(words, Pieces):
        raise RecipeError("The zoo's vocabulary is one of whole words, in which no answer can be written.")
    classes = zoo.manifest.task_table[task].classes
    answers = [classes[label].strip() for label in zoo.data[task].labels("test")[texts.rows]]
    names = {"pretrained": "pretrained", "merged": "merged", "expert": params.expert}
    found: list[dict[str, Any]] = [
        {"index": int(row), "answer": answer} for row, answer in zip(texts.rows, answers, strict=True)
    ]
    percent = {}
    for number, (state, name) in enumerate(names.items()):
        encoder, first = models.encoder(name), 0
        with torch.no_grad():
            for part in texts.pixels.split(BATCH):
                tools.progress((number + first / max(len(found), 1)) / len(names), f"{task}, {state}")
                for row, ids in enumerate(encoder.written(part.to(texts.device), LONGEST).cpu()):
                    found[first + row][state] = words.text(ids.numpy()).strip()
                first += len(part)
        percent[state] = 100 * sum(text[state] == text["answer"] for text in found) / max(len(found), 1)
    document = {"percent": percent, "texts": found, "images": len(found), "available": texts.available}
    (output / "exact_match.json").write_text(json.dumps(document, ensure_ascii=False))


def work(asked: ExactMatchRequest, sizes: Sizes) -> Work:
    """Return what the answers of three models take, a pass a written token."""
    return Work(passes=3 * LONGEST * sizes.looked_at(asked.images, asked.task))


EXACT_MATCH = View("exact_match", "Exact match", ExactMatchRequest, plan, reduced=merge_alone, work=work, needs="merge")
