"""Bias through depth: every state's block outputs compared with the expert's, and every block's own verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...catalog import CALIBRATORS, MERGE_METHODS
from ...errors import RecipeError
from ...recipe import Recipe
from ..steps import SHARE, step
from ..viewing.base import View
from ..viewing.by_task import ImagesRequest, ModelInputs, TaskParams, need_blocks, plan_by_task
from ..viewing.opening import Opening, Settings, of_worst_task, scored
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools


class DepthRequest(ImagesRequest):
    """Request to compare a run's blocks with the experts'."""

    REFUSAL = "The blocks cannot be compared"


def plan(run: RunSteps, asked: DepthRequest) -> str:
    """Plan the comparison of block outputs.

    Raises:
        RecipeError: no images of an expert's task, or weights that change from image to image.
    """
    row = MERGE_METHODS[run.recipe.merge.method]
    if row.yields == "per_sample":
        raise RecipeError(
            f"{row.title} makes other weights for every image, so there are no blocks to follow. "
            "Choose a run with a static merge or one by task."
        )
    need_blocks(run, "follow")
    deep = {call.name: call.on for call in run.recipe.calibrators if CALIBRATORS[call.method].deep}
    return plan_by_task(run, depth, asked, "Following {} through the blocks", deep)


@step(
    "depth",
    label="Following images through the blocks",
    params=TaskParams,
    inputs=ModelInputs,
    version=2,
    cost=2.0,
    gpu=True,
    threads=SHARE,
)
def depth(inputs: ModelInputs[Path], params: TaskParams, output: Path, tools: StepTools) -> None:
    """Compare every state's block outputs with the expert's on one task; writes ``depth.json``.

    Images go through in batches, and of one model beside the expert a vector an image, block and statistic is kept.
    ``lens`` holds, where the task has a head, what each block says by itself: its class token sent through the
    encoder's own read-out to the head (state → predictions (blocks + 1, n), the features' own last;
    with ``index`` and ``labels``), as :func:`engine.analysis.written.write_array` writes them.

    Source: of the lens nostalgebraist, Interpreting GPT: the logit lens, 2020; here of vision transformers.
    """
    from ...analysis.depth import bias_by_block
    from ...analysis.written import write_array
    from ...calibration.stations import block_outputs, lens
    from ...calibration.stitching import Network
    from ..viewing.models import Models, images_of, pictures_of

    zoo, task = params.sources.open(), params.task
    images = (pictures_of if params.heads else images_of)(zoo, task, params.probe, params.images)
    models = Models(zoo, inputs, task, images.device)
    networks = {"expert": lambda: Network(models.encoder(params.expert))} | models.networks(params.calibrators)
    expert, states, said = {}, {}, {}
    for number, (state, load) in enumerate(networks.items()):
        report, network = tools.part(number / len(networks), (number + 1) / len(networks)), load()
        batches = images.batches(lambda fraction, report=report, state=state: report(fraction, f"{task}, {state}"))
        outputs = block_outputs(network.encoder, batches, network.calibrator, task)
        if params.heads:
            through = lens(network.encoder, outputs["class"])
            said[state] = np.stack([*map(images.said, through), images.said(outputs["features"])])
        arrays = {name: tensor.numpy() for name, tensor in outputs.items()}
        if state == "expert":
            expert = arrays
        else:
            states[state] = bias_by_block(arrays, expert)
    document = {
        "states": states,
        "images": len(images.rows),
        "available": images.available,
        "blocks": len(expert["class"]),
    }
    if params.heads:
        facts = {"index": images.rows.astype(np.int32), "labels": images.labels.astype(np.int16)}
        document["lens"] = {name: write_array(values) for name, values in facts.items()}
        document["lens"]["said"] = {state: write_array(values.astype(np.int16)) for state, values in said.items()}
    (output / "depth.json").write_text(json.dumps(document))


def deep_only(recipe: Recipe) -> Recipe:
    """Return a recipe without calibrators of the output, so that runs which differ in them share this view."""
    deep = tuple(call for call in recipe.calibrators if CALIBRATORS[call.method].deep)
    return recipe.model_copy(update={"calibrators": deep, "seeds": recipe.seeds[:1]})


def work(asked: DepthRequest, sizes: Sizes) -> Work:
    """Return what following the images through the blocks of every state takes."""
    return Work(passes=(3 + len(asked.recipe.calibrators)) * sizes.looked_at(asked.images, asked.task))


def _opened(opening: Opening) -> Settings:
    """Ask for all tasks, and for the one that loses most."""
    return scored(opening) + of_worst_task(500)(opening)


DEPTH = View(
    "depth",
    "Bias through depth",
    DepthRequest,
    plan,
    reduced=deep_only,
    work=work,
    needs="merge",
    opens=_opened,
)
