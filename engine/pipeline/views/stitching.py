"""The step that stitches the merged model to a task's expert, and asks whether activations add up as weights do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...analysis.linearity import combined, likeness
from ...calibration.deep import DeepCalibrator
from ...calibration.stations import block_outputs
from ...calibration.stitching import Network, parts_of, stitched_features
from ...calibration.tower import Tower
from ...zoo.folder import Zoo
from .models import Models, Pictures, pictures_of

if TYPE_CHECKING:
    from ..steps import StepTools

OTHER = "expert"  # the state under which another task's expert is stitched
STITCHING_SHARE = 0.8  # of the step's time


def stitching(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Stitch every state to the expert of one task at every place; writes ``stitching.json``.

    ``states``: state → ``begins`` (accuracy with the state's first 0, 1 … blocks + 2 parts and the expert's remaining
    ones) and ``ends`` (the expert's first parts, the state's remaining ones), in percent. ``linearity``: state →
    ``cosine`` and ``change`` (against the pretrained model) with the combination of the experts' activations, after
    every block and, last, of the features.
    """
    zoo, task = Zoo.of(params["sources"]), params["task"]
    pictures = pictures_of(zoo, task, params["probe"], params["images"])
    models = Models(zoo, inputs, task, pictures.device)
    own = models.encoder(params["expert"])
    others = {OTHER: lambda: Network(models.encoder(params["other"]))} if params["other"] else {}
    networks = models.networks({}) | others | models.networks(params["calibrators"])
    states: dict[str, dict[str, list[float]]] = {}
    expert = pictures.accuracy(stitched_features(Network(own), Network(own), 0, pictures.batches()))
    for number, (state, network) in enumerate(networks.items()):
        report = tools.part(STITCHING_SHARE * number / len(networks), STITCHING_SHARE * (number + 1) / len(networks))
        states[state] = _stitched(network(), Network(own), expert, pictures, report)
    document = {
        "states": states,
        "linearity": _linearity(models, params, pictures, tools.part(STITCHING_SHARE, 1.0)),
        "images": len(pictures.labels),
        "available": pictures.available,
        "blocks": len(Tower(own).blocks),
        "other": params["other"],
        "exact": params["coefficients"] is not None,
    }
    (output / "stitching.json").write_text(json.dumps(document))


def _stitched(
    network: Network, expert: Network, whole: float, pictures: Pictures, report: Callable[..., None]
) -> dict[str, list[float]]:
    """Accuracy at every cut, in both orders; the ends of both are the two networks themselves."""
    parts = parts_of(Tower(network.encoder))
    begins, ends = [whole], []
    for cut in range(1, parts + 1):
        report((cut - 1) / (2 * parts), pictures.task)
        begins.append(pictures.accuracy(stitched_features(network, expert, cut, pictures.batches())))
    ends.append(begins[-1])
    for cut in range(1, parts):
        report(0.5 + (cut - 1) / (2 * parts), pictures.task)
        ends.append(pictures.accuracy(stitched_features(expert, network, cut, pictures.batches())))
    return {"begins": begins, "ends": [*ends, whole]}


def _linearity(
    models: Models, params: Mapping[str, Any], pictures: Pictures, report: Callable[..., None]
) -> dict[str, dict[str, list[float | None]]]:
    """How near each state is to the combination of the experts' activations, after every block and at the output."""
    names, deep = list(params["experts"]), {}
    for name, on in params["calibrators"].items():
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
    weights = params["coefficients"] or dict.fromkeys(names, 1 / len(names))
    states = {
        "pretrained": "pretrained",
        "merged": "merged",
        "expert": params["expert"],
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
