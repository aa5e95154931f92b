"""Attention: where the merged model and a task's expert look in each sample, and which of its tokens drifted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...catalog import MERGE_METHODS
from ...errors import EngineError, RecipeError
from ..steps import SHARE, step
from ..viewing.anew import merge_alone
from ..viewing.base import View
from ..viewing.by_task import ImagesRequest, ModelInputs, TaskParams, need_blocks, plan_by_task
from ..viewing.opening import Opening, Settings, of_worst_task
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ...zoo.folder import Zoo
    from ..run.plan import RunSteps
    from ..tools import StepTools
    from ..viewing.models import Images

STEPS = 255  # that shares and distances are kept in
DECIMALS = 4  # of those of words


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
    need_blocks(run, "look into")
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

    Of samples with parts (words) ``texts`` stands in place of index, labels, units and arrays: ``index``, ``label``,
    ``words`` and, a number a word, ``expert`` and ``merged`` (shares of the attention to words) and ``drift``;
    ``another`` text is compared over the places that both have.
    """
    from ...analysis.written import write_array
    from ...calibration.rollout import look
    from ..viewing.models import Models, images_of

    zoo, task = params.sources.open(), params.task
    images = images_of(zoo, task, params.probe, params.images)
    models, found = Models(zoo, inputs, task, images.device), {}
    layout = zoo.modality.layout_of(params.architecture)
    for number, name in enumerate((params.expert, "merged")):
        part = tools.part(number / 2, (number + 1) / 2)
        found[name] = look(
            models.encoder(name), images.batches(lambda fraction, part=part: part(fraction, task)), layout
        )
        if not found[name].tokens.isfinite().all():
            raise EngineError(
                f"What the model '{name}' makes of samples of {task} is not finite, so there is no attention to "
                "follow. Choose a run with a smaller scaling coefficient."
            )
    expert, merged = found[params.expert], found["merged"]
    lengths = expert.tokens.norm(dim=-1).clamp(min=np.finfo(np.float32).tiny)
    arrays = {
        "expert": expert.rollout.numpy(),
        "merged": merged.rollout.numpy(),
        "drift": ((merged.tokens - expert.tokens).norm(dim=-1) / lengths).numpy(),
    }
    order = np.random.default_rng(params.probe.split_seed).permutation(len(images.rows))
    another = np.empty_like(order)
    another[order] = np.roll(order, 1)  # nobody keeps its own
    if zoo.modality.parts:
        document = _by_word(zoo, task, images, arrays, another)
        (output / "attention.json").write_text(json.dumps(document, ensure_ascii=False))
        return
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


def _by_word(
    zoo: Zoo, task: str, samples: Images, arrays: Mapping[str, np.ndarray], another: np.ndarray
) -> dict[str, Any]:
    """Return the document of samples with parts: what falls on their words, behind the class token's place."""
    preparation, data = zoo.preprocess(), zoo.data[task]
    places = [zoo.modality.occluded(row, preparation)[0] - 1 for row in samples.pixels]
    words, labels = data.words(samples.pixels.numpy()), data.labels("test")[samples.rows]
    own = {name: [values[row][at] for row, at in enumerate(places)] for name, values in arrays.items()}
    for name in ("expert", "merged"):
        own[name] = [values / max(values.sum(), np.finfo(np.float32).tiny) for values in own[name]]
    texts = [
        {
            "index": index,
            "label": label,
            "words": words[row],
            **{name: values[row].astype(float).round(DECIMALS).tolist() for name, values in own.items()},
        }
        for row, (index, label) in enumerate(zip(samples.rows.tolist(), labels.tolist(), strict=True))
    ]
    other = [own["expert"][row] for row in another]
    alike = {"same": _alike(own["merged"], own["expert"])}
    alike["another"] = _alike(own["merged"], other) if len(another) > 1 else None
    return {"alike": alike, "texts": texts, "images": len(texts), "available": samples.available}


def _alike(left: list[np.ndarray], right: list[np.ndarray]) -> float | None:
    """Return the mean over samples of Pearson's correlation over the places that both have; None where none varies."""
    found = []
    for one, two in zip(left, right, strict=True):
        most = min(len(one), len(two))
        if most > 2 and (value := correlation(one[None, :most], two[None, :most])) is not None:
            found.append(value)
    return float(np.mean(found)) if found else None


def correlation(left: np.ndarray, right: np.ndarray) -> float | None:
    """Return the mean over rows (n, patches) of Pearson's correlation; None where no row varies."""
    left, right = (part - part.mean(1, keepdims=True) for part in (left.astype(float), right.astype(float)))
    scale = np.sqrt((left**2).sum(1) * (right**2).sum(1))
    known = scale > 0
    return float(((left * right).sum(1)[known] / scale[known]).mean()) if known.any() else None


def work(asked: AttentionRequest, sizes: Sizes) -> Work:
    """Return what following attention through two models takes; it is kept, which costs half a pass more."""
    return Work(passes=3 * sizes.looked_at(asked.images, asked.task))


def _opened(opening: Opening) -> Settings:
    """Ask for the task that loses most, where maps of few patches are kept; those of words are kept word by word."""
    return [] if opening.kind.parts else of_worst_task(500)(opening)


ATTENTION = View(
    "attention",
    "Attention and drift in the image",
    AttentionRequest,
    plan,
    reduced=merge_alone,
    work=work,
    needs="merge",
    opens=_opened,
)
