"""One task's evaluation images and the models of a run, for views that send images through them once more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..analysis.accuracy import logits, predictions, top1
from ..calibration.base import Calibrator, load_calibrator
from ..features import choose_device
from ..manifest import Preprocess
from ..recipe import Probe
from ..weights import open_weights
from ..zoo.backbone import architecture, load_encoder, normalised, preprocessing, resized
from ..zoo.folder import Zoo
from ..zoo.heads import ZeroShotHead
from ..zoo.splits import select
from .joint import WEIGHTS
from .merging import load_merged_encoder
from .run_views import read_document

if TYPE_CHECKING:
    from .steps import StepTools

BATCH = 64


@dataclass(frozen=True)
class Pictures:
    """Evaluation images of a task, as they are encoded, and what they are scored with."""

    task: str
    pixels: Tensor  # uint8 (n, 3, size, size), on the CPU
    labels: np.ndarray  # (n,)
    head: ZeroShotHead
    available: int
    preprocess: Preprocess
    device: torch.device

    def batches(self, pixels: Tensor | None = None) -> Iterator[Tensor]:
        """Normalised images on the device, a few at a time; others of the same task in place of its own."""
        for part in (self.pixels if pixels is None else pixels).split(BATCH):
            yield normalised(part.to(self.device), self.preprocess)

    def accuracy(self, features: Tensor) -> float:
        """Percent of the images whose class the task's head gives for these features."""
        scores = logits(features.float().cpu().numpy(), self.head.weight.numpy(), self.head.scale)
        return top1(predictions(scores), self.labels)


def pictures_of(zoo: Zoo, task: str, probe: Mapping[str, Any], most: int) -> Pictures:
    """Evaluation images of a task, at most so many, drawn by the split's seed.

    Raises:
        DataError: images that cannot be decoded.
        ZooError: no head fits the task.
    """
    preprocess = preprocessing(zoo.folder, zoo.manifest)
    chosen = select(zoo.data[task], Probe.model_validate(dict(probe)))
    rows = chosen.test[chosen.evaluate_rows]
    if len(rows) > most:
        rows = rows[np.sort(np.random.default_rng(probe["split_seed"]).choice(len(rows), most, replace=False))]
    pixels = resized(zoo.data[task].images("test", rows), preprocess).contiguous()
    heads, _ = zoo.heads([task])
    labels = zoo.data[task].labels("test")[rows]
    return Pictures(task, pixels, labels, heads[task], chosen.available, preprocess, choose_device())


@dataclass(frozen=True)
class Models:
    """The models of a run on one task, each loaded when it is asked for."""

    zoo: Zoo
    inputs: Mapping[str, Any]
    task: str
    device: torch.device

    def encoder(self, name: str) -> nn.Module:
        """The encoder of ``pretrained``, of ``merged``, or of an expert by name, on the device."""
        config, base = architecture(self.zoo.folder, self.zoo.manifest), self.zoo.weights("base")
        if name == "merged":
            return load_merged_encoder(Path(self.inputs["merge"]), base, config, self.task).to(self.device)
        return load_encoder(config, base if name == "pretrained" else self.zoo.weights(name)).to(self.device)

    def around(self, calibrator: str, on: str) -> nn.Module:
        """The encoder that a calibrator acts in: that of ``on``, or its own where it learned merging coefficients."""
        own = Path(self.inputs[f"calibrator/{calibrator}"]) / WEIGHTS
        if not own.is_file():
            return self.encoder(on)
        return load_encoder(architecture(self.zoo.folder, self.zoo.manifest), open_weights(own)).to(self.device)

    def calibrator(self, name: str) -> Calibrator:
        """A calibrator of the run, on the device."""
        return load_calibrator(Path(self.inputs[f"calibrator/{name}"]) / "calibrator.safetensors").to(self.device)


def gather(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Put the tasks of a view together; writes ``NAME.json``."""
    name = params["view"]
    tasks = {task: read_document(Path(inputs[task]), name) for task in params["tasks"]}
    (output / f"{name}.json").write_text(json.dumps({"split_seed": params["split_seed"], "tasks": tasks}))
