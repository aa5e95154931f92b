"""The step that shows a run's states images of a shifted domain."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...analysis.bias import l1
from ...calibration.deep import DeepCalibrator
from ...features.encode import encode
from ...zoo.folder import Zoo
from ...zoo.images.shifts import SHIFTS, shift
from .models import Models, Pictures, pictures_of

if TYPE_CHECKING:
    from ..steps import StepTools

NONE = "none"  # the images as they are


def shifted(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Score every state of a run on one task, on its images as they are and shifted; writes ``shift.json``.

    Calibrators are those of the run, fitted to the task's own images. ``shifts``: kind → state → ``accuracy`` (percent)
    and ``l1`` to the expert on the same images. Kinds are ``none``, the zoo's own shifted tasks and the drawn ones.
    """
    zoo, task = Zoo.of(params["sources"]), params["task"]
    own = pictures_of(zoo, task, params["probe"], params["images"])
    models = Models(zoo, inputs, task, own.device)
    seed = params["probe"]["split_seed"]
    sets = {NONE: own} | {name: pictures_of(zoo, name, params["probe"], params["images"]) for name in params["own"]}
    sets |= {kind: replace(own, pixels=shift(own.pixels, kind, task, seed)) for kind in SHIFTS}
    encoders = {name: models.encoder(name) for name in ("pretrained", "merged")}
    encoders["expert"] = models.encoder(params["expert"])
    calibrators = {name: (on, models.calibrator(name)) for name, on in params["calibrators"].items()}
    around = {name: models.around(name, on) for name, (on, module) in calibrators.items() if module.deep}
    found: dict[str, dict[str, Any]] = {}
    for number, (kind, pictures) in enumerate(sets.items()):
        tools.progress(number / len(sets), f"{task}, {kind}")
        features = {state: _features(encoder, pictures) for state, encoder in encoders.items()}
        for name, (on, module) in calibrators.items():
            features[name] = _corrected(features[on], around.get(name), module, pictures, task)
        expert = features["expert"].numpy()
        found[kind] = {
            state: {"accuracy": pictures.accuracy(values), "l1": l1(values.numpy(), expert)}
            for state, values in features.items()
        }
    document = {"shifts": found, "images": len(own.labels), "available": own.available, "own": params["own"]}
    (output / "shift.json").write_text(json.dumps(document))


def _features(encoder: torch.nn.Module, pictures: Pictures) -> Tensor:
    images = pictures.pixels.permute(0, 2, 3, 1).numpy()
    return encode(encoder, images, pictures.preprocess, pictures.device, lambda fraction, message="": None)


@torch.no_grad()
def _corrected(given: Tensor, encoder: torch.nn.Module | None, module: Any, pictures: Pictures, task: str) -> Tensor:
    """Features with a calibrator of the output, or of one inside the encoder."""
    if isinstance(module, DeepCalibrator):
        parts = [module.correct_features(encoder, batch, task).float().cpu() for batch in pictures.batches()]
        return torch.cat(parts)
    return module.cpu().correct(given, task)
