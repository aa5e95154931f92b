"""Steps of a sweep: accuracy on images that choices may be made on, and the table of all points."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...analysis.accuracy import logits, mean, predictions, top1
from ...calibration.base import Calibrator, load_calibrator
from ...features import choose_device, encode
from ...recipe import Probe
from ...report import read_report
from ...sweeps.table import FILE, SweepPoint, SweepTable, point_of
from ...zoo.encoders.backbone import preprocessing, to_tensor
from ...zoo.encoders.heads import ZeroShotHead
from ...zoo.folder import Zoo
from ...zoo.images.splits import select, select_validation
from ..run.encoding import encoder_for, read_features
from ..run.joint import encoder_around

if TYPE_CHECKING:
    from ..steps import StepTools

Features = Mapping[str, Tensor]  # task → (n, dim)


def validation_features(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Encode the validation images of one task; writes ``features.safetensors`` with ``val`` (n, dim)."""
    started = time.perf_counter()
    zoo = Zoo.of(params["sources"])
    data = zoo.data[params["task"]]
    images = data.images("val", select_validation(data, Probe.model_validate(params["probe"])))
    encoder = encoder_for(zoo, inputs, params)
    tensor = encode(encoder, images, preprocessing(zoo.folder, zoo.manifest), choose_device(), tools.progress)
    save_file({"val": tensor}, output / "features.safetensors")
    seconds = round(time.perf_counter() - started, 3)
    (output / "features.json").write_text(json.dumps({"seconds": seconds, "images": len(images)}))


def validate(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Accuracy of the merged model and of every calibrator on the images to choose by.

    Writes ``choice.json``: percent by state and task (mean over seeds), and the number of images by task.
    """
    zoo = Zoo.of(params["sources"])
    tasks, probe = list(params["tasks"]), Probe.model_validate(params["probe"])
    heads, _ = zoo.heads(tasks)
    labels = {task: _labels(zoo, task, probe, params["split"]) for task in tasks}
    found: dict[str, dict[str, list[float]]] = {}
    for number, seed in enumerate(params["seeds"]):
        parts = {role.split("/", 1)[1]: path for role, path in inputs.items() if role.startswith(f"{seed}/")}
        for state, features in _states(zoo, parts, params, probe):
            for task, matrix in features.items():
                found.setdefault(state, {}).setdefault(task, []).append(_accuracy(matrix, heads[task], labels[task]))
        tools.progress((number + 1) / len(params["seeds"]), f"seed {seed}")
    means = {state: {task: mean(values) for task, values in row.items()} for state, row in found.items()}
    counts = {task: len(values) for task, values in labels.items()}
    (output / "choice.json").write_text(json.dumps({"accuracy": means, "images": counts}))


def gather(inputs: Mapping[str, Any], params: Mapping[str, Any], output: Path, tools: StepTools) -> None:
    """Put the averages of all points into one table; writes ``sweep.json`` and ``table.csv``."""
    points: list[SweepPoint] = []
    chosen_on: list[int] = []
    report = None
    for place, entry in enumerate(params["points"]):
        number, values = entry["number"], tuple(entry["values"])
        if entry.get("failed"):
            points.append(SweepPoint(number=number, values=values, title=entry["title"], failed=entry["failed"]))
            continue
        report = read_report(inputs[f"{number}/run"])
        choice: dict[str, float] = {}
        if f"{number}/choice" in inputs:
            document = json.loads((inputs[f"{number}/choice"] / "choice.json").read_text())
            choice = {state: mean(row.values()) or 0.0 for state, row in document["accuracy"].items()}
            chosen_on += document["images"].values()
        points.append(point_of(number, values, entry["title"], entry["run"], report, choice))
        tools.progress((place + 1) / len(params["points"]))
    scored = [samples.evaluate for samples in report.samples.values()] if report else []
    table = SweepTable(
        places=tuple(params["places"]),
        titles=tuple(params["titles"]),
        points=tuple(points),
        split=params["split"],
        reason=params["reason"],
        choice_images=(min(chosen_on), max(chosen_on)) if chosen_on else None,
        evaluation_images=(min(scored), max(scored)) if scored else None,
        protocol=report.protocol if report else "",
        split_seed=report.split_seed if report else 0,
        seeds=report.seeds if report else (),
    )
    (output / FILE).write_text(table.model_dump_json(indent=1), "utf-8")
    (output / "table.csv").write_text(table.to_csv(), "utf-8")


def _labels(zoo: Zoo, task: str, probe: Probe, split: str) -> np.ndarray:
    data = zoo.data[task]
    if split == "validation":
        return data.labels("val")[select_validation(data, probe)]
    chosen = select(data, probe)
    return data.labels("test")[chosen.test[chosen.adapt_rows]]


def _states(
    zoo: Zoo, parts: Mapping[str, Path], params: Mapping[str, Any], probe: Probe
) -> Iterator[tuple[str, Features]]:
    """Features of every state that can be chosen by, on the images to choose by."""
    rows = {task: select(zoo.data[task], probe).adapt_rows for task in params["tasks"]}
    adapting = params["split"] == "adaptation"

    def features(state: str) -> Features:
        found = {task: read_features(parts[f"{state}/{task}"]) for task in params["tasks"]}
        return {task: both["test"][rows[task]] if adapting else both["val"] for task, both in found.items()}

    yield "merged", features("merged")
    for call in params["calibrators"]:
        folder = parts[f"calibrator/{call['name']}"]
        if adapting:
            corrected = load_file(folder / "corrected.safetensors")
            yield call["name"], {task: corrected[task][rows[task]] for task in params["tasks"]}
            continue
        calibrator = load_calibrator(folder / "calibrator.safetensors")
        if calibrator.deep:
            yield call["name"], _deep(zoo, calibrator, folder, call["state"], parts, params, probe)
        else:
            raw = features(call["state"])
            yield call["name"], {task: calibrator.correct(matrix, task).detach() for task, matrix in raw.items()}


def _deep(
    zoo: Zoo,
    calibrator: Calibrator,
    folder: Path,
    state: str,
    parts: Mapping[str, Path],
    params: Mapping[str, Any],
    probe: Probe,
) -> Features:
    """A calibrator that acts inside the encoder sees the images themselves."""
    preprocess = preprocessing(zoo.folder, zoo.manifest)
    encoder = encoder_around(zoo, folder, state, parts.get("merge"))
    found = {}
    for task in params["tasks"]:
        data = zoo.data[task]
        pixels = to_tensor(data.images("val", select_validation(data, probe)), preprocess)
        found[task] = calibrator.correct_features(encoder, pixels, task)
    return found


def _accuracy(features: Tensor, head: ZeroShotHead, labels: np.ndarray) -> float:
    scores = logits(features.detach().float().numpy(), head.weight.numpy(), head.scale)
    return top1(predictions(scores), labels)
