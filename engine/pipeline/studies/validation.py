"""Steps of a sweep: accuracy on images that choices may be made on, and the table of all points."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ...analysis.accuracy import mean, predictions, scores, top1
from ...calibration.base import Calibrator, load_calibrator
from ...features import choose_device, encode
from ...recipe import Frozen, Probe
from ...report import Report, read_report
from ...sweeps.table import FILE, SweepPoint, SweepTable, measured_on, point_of
from ...zoo.encoders.backbone import preprocessing, to_tensor
from ...zoo.encoders.heads import ZeroShotHead
from ...zoo.folder import Zoo
from ...zoo.images.splits import select, select_validation
from ..run.coefficients import encoder_around
from ..run.encoding import EncodingInputs, EncodingParams, encoder_for, read_features, write_sum
from ..sources import Sources
from ..steps import INLINED, SHARE, A, Inputs, StepParams, apart, step

if TYPE_CHECKING:
    from ..tools import StepTools

Features = Mapping[str, Tensor]  # task → (n, dim)


@step(
    "validation_features",
    label="Encoding validation images",
    params=EncodingParams,
    inputs=EncodingInputs,
    cost=0.5,
    gpu=True,
    threads=SHARE,
)
def validation_features(inputs: EncodingInputs[Path], params: EncodingParams, output: Path, tools: StepTools) -> None:
    """Encode the validation images of one task; writes ``features.safetensors`` with ``val`` (n, dim)."""
    started = time.perf_counter()
    if inputs.experts:
        write_sum(inputs, params, output, started)
        return
    zoo = params.sources.open()
    data = zoo.data[params.task]
    images = data.samples("val", select_validation(data, params.probe))
    encoder = encoder_for(zoo, inputs, params)
    tensor = encode(encoder, images, preprocessing(zoo.folder, zoo.manifest), choose_device(), tools.progress)
    save_file({"val": tensor}, output / "features.safetensors")
    seconds = round(time.perf_counter() - started, 3)
    (output / "features.json").write_text(json.dumps({"seconds": seconds, "images": len(images)}))


class ValidateParams(StepParams):
    """Parameters of the validate step."""

    split: str  # validation or adaptation
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    calibrators: dict[str, str]  # name → the state that it corrects
    pretrained: bool | None = None  # whether the pretrained model is scored as well
    probe: Probe
    data: dict[str, str]  # digests of images by task
    heads: str | None  # digest
    sources: Sources = apart()


@dataclass(frozen=True)
class ChoiceSeed(Inputs[A]):
    """Artefacts of one seed of a run that its validation accuracy is computed from."""

    merge: A | None  # for calibrators that act inside the merged encoder
    features: Mapping[str, Mapping[str, A]] = field(default_factory=dict, metadata=INLINED)  # state → task
    calibrator: Mapping[str, A] = field(default_factory=dict)  # by name


@dataclass(frozen=True)
class ValidateInputs(Inputs[A]):
    """Inputs of the validate step."""

    seeds: Mapping[int, ChoiceSeed[A]] = field(default_factory=dict, metadata=INLINED)
    heads: A | None = None  # where they are built


@step("validate", label="Scoring the images to choose by", params=ValidateParams, inputs=ValidateInputs, cost=0.5)
def validate(inputs: ValidateInputs[Path], params: ValidateParams, output: Path, tools: StepTools) -> None:
    """Score the merged model and every calibrator on the images to choose by.

    Writes ``choice.json``: percent by state and task (mean over seeds), and the number of images by task.
    """
    zoo = params.sources.open()
    heads, _ = zoo.heads(list(params.tasks))
    labels = {task: _labels(zoo, task, params.probe, params.split) for task in params.tasks}
    found: dict[str, dict[str, list[float]]] = {}
    for number, seed in enumerate(params.seeds):
        for state, features in _states(zoo, inputs.seeds[seed], params):
            for task, matrix in features.items():
                found.setdefault(state, {}).setdefault(task, []).append(_accuracy(matrix, heads[task], labels[task]))
        tools.progress((number + 1) / len(params.seeds), f"seed {seed}")
    means = {state: {task: mean(values) for task, values in row.items()} for state, row in found.items()}
    counts = {task: len(values) for task, values in labels.items()}
    (output / "choice.json").write_text(json.dumps({"accuracy": means, "images": counts}))


class PlannedPoint(Frozen):
    """A point of a sweep, and the run that stands for it or why there is none."""

    number: int
    values: tuple[Any, ...]
    title: str
    run: str | None
    failed: str | None = None


class SweepParams(StepParams):
    """Parameters of the step that puts a sweep's points into a table."""

    places: tuple[str, ...]
    titles: tuple[str, ...]
    points: tuple[PlannedPoint, ...]
    split: str | None  # that is chosen by
    reason: str  # why by none


@dataclass(frozen=True)
class PointInputs(Inputs[A]):
    """Artefacts of a point: its run, and its accuracies on the images to choose by."""

    run: A
    choice: A | None = None


@dataclass(frozen=True)
class SweepInputs(Inputs[A]):
    """Artefacts of the points of a sweep, by number."""

    points: Mapping[int, PointInputs[A]] = field(default_factory=dict, metadata=INLINED)


@step("sweep", label="Gathering the table", params=SweepParams, inputs=SweepInputs, version=2, cost=0.2)
def sweep_table(inputs: SweepInputs[Path], params: SweepParams, output: Path, tools: StepTools) -> None:
    """Put the averages of all points into one table; writes ``sweep.json`` and ``table.csv``."""
    points: list[SweepPoint] = []
    chosen_on: list[int] = []
    reports: list[Report] = []
    for place, entry in enumerate(params.points):
        if entry.failed:
            points.append(SweepPoint(number=entry.number, values=entry.values, title=entry.title, failed=entry.failed))
            continue
        left = inputs.points[entry.number]
        report = read_report(left.run)
        reports.append(report)
        choice: dict[str, float] = {}
        if left.choice is not None:
            document = json.loads((left.choice / "choice.json").read_text())
            choice = {state: mean(row.values()) or 0.0 for state, row in document["accuracy"].items()}
            chosen_on += document["images"].values()
        points.append(point_of(entry.number, entry.values, entry.title, entry.run, report, choice))
        tools.progress((place + 1) / len(params.points))
    table = SweepTable(
        places=params.places,
        titles=params.titles,
        points=tuple(points),
        split=params.split,
        reason=params.reason,
        choice_images=(min(chosen_on), max(chosen_on)) if chosen_on else None,
        **measured_on(reports),
    )
    (output / FILE).write_text(table.model_dump_json(indent=1), "utf-8")
    (output / "table.csv").write_text(table.to_csv(), "utf-8")


def _labels(zoo: Zoo, task: str, probe: Probe, split: str) -> np.ndarray:
    """Read the labels of the images to choose by."""
    data = zoo.data[task]
    if split == "validation":
        return data.labels("val")[select_validation(data, probe)]
    chosen = select(data, probe)
    return data.labels("test")[chosen.test[chosen.adapt_rows]]


def _states(zoo: Zoo, parts: ChoiceSeed[Path], params: ValidateParams) -> Iterator[tuple[str, Features]]:
    """Yield features of every state that can be chosen by, on the images to choose by."""
    rows = {task: select(zoo.data[task], params.probe).adapt_rows for task in params.tasks}
    adapting = params.split == "adaptation"

    def features(state: str) -> Features:
        found = {task: read_features(parts.features[state][task]) for task in params.tasks}
        return {task: both["test"][rows[task]] if adapting else both["val"] for task, both in found.items()}

    yield "merged", features("merged")
    if params.pretrained:
        yield "pretrained", features("pretrained")
    for name, state in params.calibrators.items():
        folder = parts.calibrator[name]
        if adapting:
            corrected = load_file(folder / "corrected.safetensors")
            yield name, {task: corrected[task][rows[task]] for task in params.tasks}
            continue
        calibrator = load_calibrator(folder / "calibrator.safetensors")
        if calibrator.deep:
            yield name, _deep(zoo, calibrator, encoder_around(zoo, folder, state, parts.merge), params)
        else:
            raw = features(state)
            yield name, {task: calibrator.correct(matrix, task).detach() for task, matrix in raw.items()}


def _deep(zoo: Zoo, calibrator: Calibrator, encoder: nn.Module, params: ValidateParams) -> Features:
    """Correct with a calibrator that acts inside the encoder: it sees the images themselves."""
    preprocess, found = preprocessing(zoo.folder, zoo.manifest), {}
    for task in params.tasks:
        data = zoo.data[task]
        pixels = to_tensor(data.samples("val", select_validation(data, params.probe)), preprocess)
        found[task] = calibrator.correct_features(encoder, pixels, task)
    return found


def _accuracy(features: Tensor, head: ZeroShotHead, labels: np.ndarray) -> float:
    return top1(predictions(scores(features.detach().float().numpy(), head)), labels)
