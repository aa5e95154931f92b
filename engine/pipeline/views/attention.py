"""Attention: where the merged model and a task's expert look in each image, and whose patches drifted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...catalog import MERGE_METHODS
from ...errors import RecipeError
from ..steps import SHARE, step
from ..viewing.anew import merge_alone
from ..viewing.base import View
from ..viewing.by_task import ImagesRequest, ModelInputs, TaskParams, plan_by_task
from ..viewing.opening import of_worst_task
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools

STEPS = 255  # that shares and distances are kept in


class AttentionRequest(ImagesRequest):
    """Request to look where models look."""

    REFUSAL = "Attention cannot be followed"


def plan(run: RunSteps, asked: AttentionRequest) -> str:
    """Plan the comparison of attention and of patches' tokens.

    Raises:
        RecipeError: no images of an expert's task, or weights that change from image to image.
    """
    row = MERGE_METHODS[run.recipe.merge.method]
    if row.yields == "per_sample":
        raise RecipeError(
            f"{row.title} makes other weights for every image, so there is no attention to follow. "
            "Choose a run with a static merge or one by task."
        )
    return plan_by_task(run, attention, asked, "Looking where models look on {}", {})


@step(
    "attention",
    label="Looking where models look",
    params=TaskParams,
    inputs=ModelInputs,
    cost=1.5,
    gpu=True,
    threads=SHARE,
)
def attention(inputs: ModelInputs[Path], params: TaskParams, output: Path, tools: StepTools) -> None:
    """Compare rollouts and patches' tokens of the merged model with the expert's; writes ``attention.json``.

    Arrays (n, patches), patches row by row, as :func:`engine.analysis.written.write_array` writes them: ``expert`` and
    ``merged`` (rollout: shares of attention) and ``drift`` (‖x_merged − x_expert‖ / ‖x_expert‖ of the tokens that
    enter the last block); bytes, in units of ``unit``. ``alike``: mean correlation over images of the merged model's
    rollout with the expert's of the ``same`` image and, the control, of ``another`` image of the task.
    """
    from ...analysis.written import write_array
    from ...calibration.rollout import look
    from ..viewing.models import Models, images_of

    zoo, task = params.sources.open(), params.task
    images = images_of(zoo, task, params.probe, params.images)
    models, found = Models(zoo, inputs, task, images.device), {}
    for number, name in enumerate((params.expert, "merged")):
        part = tools.part(number / 2, (number + 1) / 2)
        found[name] = look(models.encoder(name), images.batches(lambda fraction, part=part: part(fraction, task)))
    expert, merged = found[params.expert], found["merged"]
    lengths = expert.tokens.norm(dim=-1).clamp(min=np.finfo(np.float32).tiny)
    arrays = {
        "expert": expert.rollout.numpy(),
        "merged": merged.rollout.numpy(),
        "drift": ((merged.tokens - expert.tokens).norm(dim=-1) / lengths).numpy(),
    }
    order = np.random.default_rng(params.probe.split_seed).permutation(len(images.rows))
    another = np.empty_like(order)
    another[order] = np.roll(order, 1)  # nobody keeps an image's own
    document = {
        "alike": {
            "same": correlation(arrays["merged"], arrays["expert"]),
            "another": correlation(arrays["merged"], arrays["expert"][another]) if len(order) > 1 else None,
        },
        "unit": {name: float(values.max()) / STEPS for name, values in arrays.items()},
        "index": write_array(images.rows.astype(np.int32)),
        "labels": write_array(zoo.data[task].labels("test")[images.rows].astype(np.int16)),
        "images": len(images.rows),
        "available": images.available,
    }
    for name, values in arrays.items():
        unit = document["unit"][name] or 1.0
        document[name] = write_array(np.rint(values / unit).astype(np.uint8))
    (output / "attention.json").write_text(json.dumps(document))


def correlation(left: np.ndarray, right: np.ndarray) -> float | None:
    """Return the mean over rows (n, patches) of Pearson's correlation; None where no row varies."""
    left, right = (part - part.mean(1, keepdims=True) for part in (left.astype(float), right.astype(float)))
    scale = np.sqrt((left**2).sum(1) * (right**2).sum(1))
    known = scale > 0
    return float(((left * right).sum(1)[known] / scale[known]).mean()) if known.any() else None


def work(asked: AttentionRequest, sizes: Sizes) -> Work:
    """Return what following attention through two models takes; it is kept, which costs half a pass more."""
    return Work(passes=3 * sizes.looked_at(asked.images, asked.task))


ATTENTION = View(
    "attention",
    "Attention and drift in the image",
    AttentionRequest,
    plan,
    reduced=merge_alone,
    inside="Attention cannot be followed",
    work=work,
    needs="merge",
    opens=of_worst_task(500),
)
