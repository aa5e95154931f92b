"""One task's evaluation images and the models of a run, for views that send images through them once more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ...analysis.accuracy import predictions, scores, top1
from ...calibration.base import Calibrator, load_calibrator
from ...calibration.stitching import Network
from ...features import choose_device
from ...preparation import Preparation
from ...recipe import Probe
from ...zoo.encoders.backbone import architecture, load_encoder, normalised, preprocessing, resized
from ...zoo.encoders.heads import ZeroShotHead
from ...zoo.folder import Zoo
from ...zoo.images.splits import select
from ..run.coefficients import own_encoder
from ..run.merging import load_merged_encoder
from .by_image import BESIDE, packed
from .by_task import ModelInputs

BATCH = 64
Scored = dict[str, float | str]  # an accuracy, and beside it the images that are right


@dataclass(frozen=True)
class Images:
    """Evaluation images of a task, as they are encoded."""

    task: str
    rows: np.ndarray  # (n,) of the test split
    pixels: Tensor  # uint8 (n, 3, size, size), on the CPU
    available: int
    preprocess: Preparation
    device: torch.device

    def batches(self, report: Callable[[float], None] = lambda fraction: None) -> Iterator[Tensor]:
        """Yield normalised images on the device, a few at a time; told how much of them has been given."""
        for first in range(0, len(self.pixels), BATCH):
            report(first / len(self.pixels))
            yield normalised(self.pixels[first : first + BATCH].to(self.device), self.preprocess)


@dataclass(frozen=True)
class Pictures(Images):
    """Images with what they are scored with."""

    labels: np.ndarray  # (n,)
    head: ZeroShotHead

    def said(self, features: Tensor) -> np.ndarray:
        """Return the class (n,) that the task's head gives for these features."""
        return predictions(scores(features.float().cpu().numpy(), self.head))

    def accuracy(self, features: Tensor) -> float:
        """Return the percent of the images whose class the task's head gives for these features."""
        return top1(self.said(features), self.labels)

    def scored(self, features: Tensor) -> Scored:
        """Return the accuracy in percent and, packed, the images that are right; see ``by_image``."""
        said = self.said(features)
        return {"accuracy": top1(said, self.labels), f"accuracy{BESIDE}": packed(said == self.labels)}

    @torch.no_grad()
    def right(self, encoder: nn.Module) -> np.ndarray:
        """Return whether (n,) the head gives the true class for what an encoder makes of each image."""
        return self.said(torch.cat([encoder(batch).cpu() for batch in self.batches()])) == self.labels


def images_of(zoo: Zoo, task: str, probe: Probe, most: int) -> Images:
    """Read the evaluation images of a task, at most so many, drawn by the split's seed.

    Raises:
        DataError: images that cannot be decoded.
    """
    preprocess = preprocessing(zoo.folder, zoo.manifest)
    chosen = select(zoo.data[task], probe)
    rows = chosen.test[chosen.evaluate_rows]
    if len(rows) > most:
        rows = rows[np.sort(np.random.default_rng(probe.split_seed).choice(len(rows), most, replace=False))]
    pixels = resized(zoo.data[task].samples("test", rows), preprocess).contiguous()
    return Images(task, rows, pixels, chosen.available, preprocess, choose_device())


def pictures_of(zoo: Zoo, task: str, probe: Probe, most: int) -> Pictures:
    """Read the same images with labels and head.

    Raises:
        DataError: images that cannot be decoded.
        ZooError: no head fits the task.
    """
    images = images_of(zoo, task, probe, most)
    heads, _ = zoo.heads([task])
    return Pictures(**vars(images), labels=zoo.data[task].labels("test")[images.rows], head=heads[task])


@dataclass(frozen=True)
class Models:
    """The models of a run on one task, each loaded when it is asked for."""

    zoo: Zoo
    inputs: ModelInputs[Path]
    task: str
    device: torch.device

    def encoder(self, name: str) -> nn.Module:
        """Build the encoder of ``pretrained``, of ``merged``, or of an expert by name, on the device."""
        config, base = architecture(self.zoo.folder, self.zoo.manifest), self.zoo.weights("base")
        if name == "merged":
            return load_merged_encoder(self.inputs.merge, base, config, self.task).to(self.device)
        return load_encoder(config, base if name == "pretrained" else self.zoo.weights(name)).to(self.device)

    def around(self, calibrator: str, on: str) -> nn.Module:
        """Build the encoder that a calibrator acts in: its own where it learned coefficients, else that of ``on``."""
        own = own_encoder(self.zoo, self.inputs.calibrator[calibrator])
        return self.encoder(on) if own is None else own.to(self.device)

    def calibrator(self, name: str) -> Calibrator:
        """Load a calibrator of the run, on the device."""
        return load_calibrator(self.inputs.calibrator[name] / "calibrator.safetensors").to(self.device)

    def networks(self, calibrators: Mapping[str, str]) -> dict[str, Callable[[], Network]]:
        """Return the states of a run but the expert, by name; each is loaded when its turn comes.

        Args:
            calibrators: name → the state that it corrects.
        """
        found = {name: (lambda name=name: Network(self.encoder(name))) for name in ("pretrained", "merged")}
        for name, on in calibrators.items():
            found[name] = lambda name=name, on=on: Network(self.around(name, on), self.calibrator(name), self.task)
        return found
