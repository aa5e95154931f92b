"""Shifted images: what a run's states make of images of a shifted domain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from ...errors import RecipeError
from ...recipe import LATER
from ..steps import SHARE, apart, step
from ..viewing.base import View
from ..viewing.by_image import BESIDE
from ..viewing.by_task import ImagesRequest, ModelInputs, TaskParams, plan_by_task
from ..viewing.opening import scored
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..run.plan import RunSteps
    from ..tools import StepTools
    from ..viewing.models import Pictures

VERSIONS = {"usual": 6, "corruptions": 8}  # of the images, as they are among them, about
NONE = "none"  # the images as they are


class ShiftRequest(ImagesRequest):
    """Request to score a run's states on shifted images."""

    REFUSAL = "The images cannot be shifted"

    drawn: Annotated[Literal["usual", "corruptions"], LATER] = Field(
        "usual",
        title="Drawn shifts",
        description="Of images noise, blur, contrast and negatives, of texts misspelt, missing and swapped words; or "
        "the seven corruptions of images of papers on merging.",
    )


class ShiftParams(TaskParams):
    """Parameters of shifting one task's images."""

    own: tuple[str, ...] = apart()  # the zoo's own shifted versions of the task
    own_digests: dict[str, str]  # of their images
    drawn: str  # a set of shifts


def plan(run: RunSteps, asked: ShiftRequest) -> str:
    """Plan the scores of a run's states on shifted images.

    Raises:
        RecipeError: no images or heads of an expert's task of classes.
    """
    if asked.drawn not in run.zoo.modality.shifts:
        raise RecipeError(
            f"The shifts '{asked.drawn}' are drawn of images; {run.zoo.modality.many} have the usual ones."
        )

    def own(task: str) -> dict[str, Any]:
        names = [t.name for t in run.zoo.manifest.tasks if t.shifted_from == task and t.name in run.zoo.data]
        digests = {name: run.data_digests[name] for name in names}
        return {"own": tuple(names), "own_digests": digests, "drawn": asked.drawn}

    calls = {call.name: call.on for call in run.recipe.calibrators}
    return plan_by_task(run, shifted, asked, "Shifting the images of {}", calls, own, right=True)


@step(
    "shift",
    label="Shifting images",
    params=ShiftParams,
    inputs=ModelInputs,
    cost=4.0,
    gpu=True,
    threads=SHARE,
    version=2,
)
def shifted(inputs: ModelInputs[Path], params: ShiftParams, output: Path, tools: StepTools) -> None:
    """Score every state of a run on one task, on its images as they are and shifted; writes ``shift.json``.

    Calibrators are those of the run, fitted to the task's own images. ``shifts``: kind → state → ``accuracy`` (percent)
    with the images that are right (see ``viewing/by_image.py``) and ``l1`` to the expert on the same images. Kinds are
    ``none``, the zoo's own shifted tasks and the drawn ones; ``mean`` is over the zoo's own where it has some and the
    usual ones are drawn, else over all drawn ones. ``images`` are those of the task; ``images_of`` of the zoo's own
    shifted tasks that have another number of them.
    """
    from dataclasses import replace

    from ...analysis.bias import l1
    from ...zoo.modalities import modality_of
    from ..viewing.models import Models, pictures_of

    zoo, task = params.sources.open(), params.task
    modality = modality_of(zoo.manifest)
    kinds = modality.shifts[params.drawn]
    own = pictures_of(zoo, task, params.probe, params.images)
    models = Models(zoo, inputs, task, own.device)
    seed, preparation = params.probe.split_seed, zoo.preprocess()
    sets = {NONE: own} | {name: pictures_of(zoo, name, params.probe, params.images) for name in params.own}
    sets |= {kind: replace(own, pixels=modality.shifted(own.pixels, kind, task, seed, preparation)) for kind in kinds}
    encoders = {name: models.encoder(name) for name in ("pretrained", "merged")}
    encoders["expert"] = models.encoder(params.expert)
    calibrators = {name: (on, models.calibrator(name)) for name, on in params.calibrators.items()}
    around = {name: models.around(name, on) for name, (on, module) in calibrators.items() if module.deep}
    found: dict[str, dict[str, Any]] = {}
    for number, (kind, pictures) in enumerate(sets.items()):
        tools.progress(number / len(sets), f"{task}, {kind}")
        features = {state: _features(encoder, pictures) for state, encoder in encoders.items()}
        for name, (on, module) in calibrators.items():
            features[name] = _corrected(features[on], around.get(name), module, pictures, task)
        expert = features["expert"].numpy()
        found[kind] = {
            state: {**pictures.scored(values), "l1": l1(values.numpy(), expert)} for state, values in features.items()
        }
    own_count = params.own if params.drawn == "usual" else ()
    mean = _mean([found[kind] for kind in own_count or kinds])
    document = {
        "shifts": found,
        "mean": mean,
        "images": len(own.labels),
        "available": own.available,
        "own": list(params.own),
    }
    fewer = {name: len(sets[name].labels) for name in params.own if len(sets[name].labels) != len(own.labels)}
    (output / "shift.json").write_text(json.dumps(document | ({"images_of": fewer} if fewer else {})))


def _mean(kinds: list[dict[str, Any]]) -> dict[str, Any]:
    """Average every state's numbers over kinds of shift, and list the images that are right of each."""
    return {
        state: {
            name: [kind[state][name] for kind in kinds]
            if name.endswith(BESIDE)
            else sum(kind[state][name] for kind in kinds) / len(kinds)
            for name in numbers
        }
        for state, numbers in kinds[0].items()
    }


def _features(encoder: torch.nn.Module, pictures: Pictures) -> Tensor:
    from ...features.encode import encode
    from ...zoo.modalities import of_preparation

    images = of_preparation(pictures.preprocess).samples(pictures.pixels)
    return encode(encoder, images, pictures.preprocess, pictures.device, lambda fraction, message="": None)


def _corrected(given: Tensor, encoder: torch.nn.Module | None, module: Any, pictures: Pictures, task: str) -> Tensor:
    """Correct features with a calibrator of the output, or encode with one inside the encoder."""
    import torch

    with torch.no_grad():
        if module.deep:
            parts = [module.correct_features(encoder, batch, task).float().cpu() for batch in pictures.batches()]
            return torch.cat(parts)
        return module.cpu().correct(given, task)


def work(asked: ShiftRequest, sizes: Sizes) -> Work:
    """Return what the images take through every state, as they are and in every shifted version."""
    versions = VERSIONS[asked.drawn]
    return Work(passes=versions * (3 + len(asked.recipe.calibrators)) * sizes.looked_at(asked.images, asked.task))


SHIFT = View("shift", "Shifted images", ShiftRequest, plan, work=work, opens=scored)
