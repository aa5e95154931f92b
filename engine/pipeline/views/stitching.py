"""Stitched networks: the merged model's parts with a task's expert's, and whether activations add up as weights do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...catalog import MERGE_METHODS
from ...catalog.basic import TaskArithmeticParams
from ...errors import RecipeError
from ...recipe import Recipe
from ..steps import SHARE, apart, step
from ..viewing.base import View
from ..viewing.by_image import BESIDE
from ..viewing.by_task import ImagesRequest, ModelInputs, TaskParams, another, need_blocks, plan_by_task
from ..viewing.opening import scored
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from ...calibration.stitching import Network
    from ...layouts import Layout
    from ..run.plan import RunSteps
    from ..tools import StepTools
    from ..viewing.models import Models, Pictures, Scored

OTHER = "expert"  # the state under which another task's expert is stitched
STITCHING_SHARE = 0.8  # of the step's time


class StitchingRequest(ImagesRequest):
    """Request to stitch a run's states to the experts."""

    REFUSAL = "The networks cannot be stitched"


class StitchingParams(TaskParams):
    """Parameters of stitching on one task."""

    coefficients: dict[str, float] | None  # of the merge as a sum of task vectors; None where it is none
    experts: tuple[str, ...] = apart()
    other: str = apart()  # another task's expert; empty where there is one expert
    experts_digests: tuple[str, ...]
    other_digest: str


def plan(run: RunSteps, asked: StitchingRequest) -> str:
    """Plan stitched networks and cross-task linearity.

    Raises:
        RecipeError: no images or heads of an expert's task of classes, or weights that change from image to image.
    """
    row = MERGE_METHODS[run.recipe.merge.method]
    if row.yields == "per_sample":
        raise RecipeError(
            f"{row.title} makes other weights for every image, so there are no blocks to stitch. "
            "Choose a run with a static merge or one by task."
        )
    need_blocks(run, "stitch")
    names = tuple(name for name, _ in run.experts)
    weights = combination(run.recipe, dict(run.experts))

    def own(task: str) -> dict[str, Any]:
        other = another(run, task)
        return {
            "coefficients": weights,
            "experts": names,
            "other": other,
            "experts_digests": tuple(run.digests[name] for name in names),
            "other_digest": run.digests.get(other, ""),
        }

    calls = {call.name: call.on for call in run.recipe.calibrators}
    return plan_by_task(run, stitching, asked, "Stitching networks on {}", calls, own, lambda task: names, right=True)


def combination(recipe: Recipe, experts: Mapping[str, float]) -> dict[str, float] | None:
    """Return the coefficients a_t of a merge θ₀ + Σ a_t τ_t, by expert; None where a merge is no such sum."""
    if recipe.transforms:
        return None
    if recipe.merge.method == "weight_average":
        return {name: weight / len(experts) for name, weight in experts.items()}
    if recipe.merge.method == "task_arithmetic":
        scaling = TaskArithmeticParams.model_validate(recipe.merge.params).scaling
        return {name: scaling * weight for name, weight in experts.items()}
    return None


@step(
    "stitching",
    label="Stitching networks",
    params=StitchingParams,
    inputs=ModelInputs,
    cost=4.0,
    gpu=True,
    threads=SHARE,
    version=2,
)
def stitching(inputs: ModelInputs[Path], params: StitchingParams, output: Path, tools: StepTools) -> None:
    """Stitch every state to the expert of one task at every place; writes ``stitching.json``.

    ``states``: state → ``begins`` (accuracy with the state's first 0, 1 … blocks + 2 parts and the expert's remaining
    ones) and ``ends`` (the expert's first parts, the state's remaining ones), in percent, with the images that are
    right (see ``viewing/by_image.py``). ``linearity``: state → ``cosine`` and ``change`` (against the pretrained model)
    with the combination of the experts' activations, after every block and, last, of the features.
    """
    from ...calibration.stitching import Network, parts_of, stitched_features
    from ..viewing.models import Models, pictures_of

    zoo, task = params.sources.open(), params.task
    pictures = pictures_of(zoo, task, params.probe, params.images)
    models = Models(zoo, inputs, task, pictures.device)
    own, layout = models.encoder(params.expert), zoo.modality.layout_of(params.architecture)
    others = {OTHER: lambda: Network(models.encoder(params.other))} if params.other else {}
    networks = models.networks({}) | others | models.networks(params.calibrators)
    states: dict[str, dict[str, list[Any]]] = {}
    expert = pictures.scored(stitched_features(Network(own), Network(own), 0, pictures.batches(), layout))
    for number, (state, network) in enumerate(networks.items()):
        report = tools.part(STITCHING_SHARE * number / len(networks), STITCHING_SHARE * (number + 1) / len(networks))
        states[state] = _stitched(network(), Network(own), expert, pictures, layout, report)
    document = {
        "states": states,
        "linearity": _linearity(models, params, pictures, tools.part(STITCHING_SHARE, 1.0)),
        "images": len(pictures.labels),
        "available": pictures.available,
        "blocks": parts_of(own) - 2,
        "other": params.other,
        "exact": params.coefficients is not None,
    }
    (output / "stitching.json").write_text(json.dumps(document))


def _stitched(
    network: Network,
    expert: Network,
    whole: Scored,
    pictures: Pictures,
    layout: Layout,
    report: Callable[..., None],
) -> dict[str, list[Any]]:
    """Measure accuracy at every cut, in both orders; the ends of both are the two networks themselves."""
    from ...calibration.stitching import parts_of, stitched_features

    parts = parts_of(network.encoder)
    begins, ends = [whole], []
    for cut in range(1, parts + 1):
        report((cut - 1) / (2 * parts), pictures.task)
        begins.append(pictures.scored(stitched_features(network, expert, cut, pictures.batches(), layout)))
    ends.append(begins[-1])
    for cut in range(1, parts):
        report(0.5 + (cut - 1) / (2 * parts), pictures.task)
        ends.append(pictures.scored(stitched_features(expert, network, cut, pictures.batches(), layout)))
    found: dict[str, list[Any]] = {}
    for name, cuts in (("begins", begins), ("ends", [*ends, whole])):
        found[name] = [one["accuracy"] for one in cuts]
        found[f"{name}{BESIDE}"] = [one[f"accuracy{BESIDE}"] for one in cuts]
    return found


def _linearity(
    models: Models, params: StitchingParams, pictures: Pictures, report: Callable[..., None]
) -> dict[str, dict[str, list[float | None]]]:
    """Compare each state with the combination of the experts' activations, after every block and at the output."""
    import torch

    from ...analysis.linearity import combined, likeness
    from ...calibration.deep import DeepCalibrator
    from ...calibration.stations import block_outputs

    names, deep = list(params.experts), {}
    for name, on in params.calibrators.items():
        module = models.calibrator(name)
        if isinstance(module, DeepCalibrator):
            deep[name] = (on, module)
    asked = ["pretrained", *names, "merged", *deep]
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for number, name in enumerate(asked):
        report(number / len(asked), f"{pictures.task}, {name}")
        on, module = deep.get(name, (name, None))
        encoder = models.encoder(on) if module is None else models.around(name, on)
        with torch.inference_mode():
            outputs = block_outputs(encoder, pictures.batches(), module, pictures.task)
        found[name] = outputs["class"].numpy(), outputs["features"].numpy()[None]
    weights = params.coefficients or dict.fromkeys(names, 1 / len(names))
    states = {
        "pretrained": "pretrained",
        "merged": "merged",
        "expert": params.expert,
        **{name: name for name in deep},
    }
    result: dict[str, dict[str, list[float | None]]] = {state: {"cosine": [], "change": []} for state in states}
    for place in (0, 1):
        base = found["pretrained"][place]
        target = combined(base, {name: found[name][place] for name in names}, weights)
        for state, name in states.items():
            result[state]["cosine"] += likeness(found[name][place], target)
            result[state]["change"] += likeness(found[name][place], target, base)
    return result


def work(asked: StitchingRequest, sizes: Sizes) -> Work:
    """Return what every state takes that is cut at every block in both orders, and the experts' activations."""
    states, cuts = 3 + len(asked.recipe.calibrators), 2 * (sizes.blocks + 2) - 1
    return Work(passes=(states * cuts + sizes.experts + states) * sizes.looked_at(asked.images, asked.task))


STITCHING = View(
    "stitching",
    "Stitched networks",
    StitchingRequest,
    plan,
    work=work,
    opens=scored,
)
