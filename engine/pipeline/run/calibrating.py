"""The step that trains one calibrator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from ...calibration.deep_training import fit_deep
from ...calibration.sampling import check_rows, generator_for
from ...catalog import CALIBRATORS, params_of, row_of
from ...errors import CalibrationError
from ...recipe import Probe
from ...zoo.encoders.heads import ZeroShotHead
from ...zoo.folder import Zoo
from ...zoo.images.splits import Selection, select
from ..sources import Sources
from ..steps import INLINED, A, Inputs, StepParams, apart, step
from .coefficients import JointMerge, coefficients_of, linear_merge, save_learned
from .encoding import encoder_of, read_features

if TYPE_CHECKING:
    from ...calibration import Calibrator
    from ..tools import StepTools

MONITORED = 20  # points of a curve
COLUMNS = ("step", "loss", "l1_adapt", "l1_evaluate", "accuracy_adapt", "accuracy_evaluate")


@dataclass(frozen=True)
class TaskFeatures:
    """Paired features of one task and what is needed to score them."""

    state: Tensor  # (n, dim) of the model to be repaired, on the encoded test images
    expert: Tensor  # (n, dim)
    state_adapt: Tensor  # (m, dim)
    expert_adapt: Tensor  # (m, dim)
    labels: Tensor  # (n,)
    head: ZeroShotHead
    chosen: Selection
    graded: bool = False  # whether its classes are grades, which have no accuracy


class CalibrateParams(StepParams):
    """Parameters of the calibrate step."""

    method: str
    params: dict[str, Any]  # the method's own
    state: str  # merged or pretrained: the model that is repaired
    tasks: tuple[str, ...]  # trained on
    targets: dict[str, str]  # task that is corrected → task whose module corrects it
    seed: int
    probe: Probe
    data: dict[str, str]  # digests of images by task
    heads: str | None  # digest
    joint: JointMerge | None = None  # where merging coefficients learn as well
    name: str = apart()
    experts: dict[str, str] = apart()  # task → its expert, whose features are inputs
    sources: Sources = apart()


@dataclass(frozen=True)
class CalibrateInputs(Inputs[A]):
    """Inputs of the calibrate step."""

    features: Mapping[str, Mapping[str, A]] = field(default_factory=dict, metadata=INLINED)  # state → task
    merge: A | None = None  # for calibrators that act inside the merged encoder
    heads: A | None = None  # where they are built


def _encodes(params: CalibrateParams) -> bool:
    """Tell whether a calibrator acts inside the encoder; features alone are too little work for an accelerator."""
    return CALIBRATORS[params.method].deep


@step(
    "calibrate",
    label="Training a calibrator",
    params=CalibrateParams,
    inputs=CalibrateInputs,
    cost=5.0,
    gpu=_encodes,
    threads=1,
)
def calibrate(inputs: CalibrateInputs[Path], params: CalibrateParams, output: Path, tools: StepTools) -> None:
    """Train a calibrator on adaptation features and correct the test features with it.

    Writes ``calibrator.safetensors``, ``corrected.safetensors`` (features (n, dim) by task, and ``sigma/TASK`` (n,)
    where the calibrator predicts one) and ``calibration.json`` with the curve.
    """
    row = row_of(CALIBRATORS, params.method, "calibrator")
    config = params_of(row, params.params)
    zoo = params.sources.open()
    data = _read(zoo, inputs, params, config.share)
    watch = _Watch(params.name, data, config.steps, tools)
    calibrator: Calibrator = row.load()()
    every, learned = max(1, config.steps // MONITORED), {}
    if row.deep:
        corrected, report, learned = _deep(calibrator, zoo, data, inputs, params, config, watch, every, output)
    else:
        merged = {task: data[task].state_adapt for task in params.tasks}
        expert = {task: data[task].expert_adapt for task in params.tasks}
        report = calibrator.fit(merged, expert, config, params.seed, watch, every)
        corrected = {task: calibrator.correct(data[task].state, own) for task, own in params.targets.items()}
    if report.steps == 0 and report.diverged_at is not None:
        raise CalibrationError(
            f"{row.title} diverged at step {report.diverged_at}, before anything was learned. Lower the learning rate."
        )
    calibrator.save(output / "calibrator.safetensors")
    tensors = {task: tensor.contiguous().float() for task, tensor in corrected.items()}
    save_file(tensors | _sigmas(calibrator, data, params.targets), output / "corrected.safetensors")
    document = {
        "parameters": calibrator.parameter_count(),
        "needs_task_id": not calibrator.shared,
        "seconds": round(report.seconds, 3),
        "steps": report.steps,
        "diverged_at": report.diverged_at,
        "warnings": list(report.warnings),
        "columns": list(COLUMNS),
        "curve": watch.curve,
        "task_curves": watch.task_curves,
        **learned,
    }
    (output / "calibration.json").write_text(json.dumps(document))


def _read(zoo: Zoo, inputs: CalibrateInputs[Path], params: CalibrateParams, share: float) -> dict[str, TaskFeatures]:
    """Read the features of every task; of the adaptation images only the share that is trained on."""
    heads, _ = zoo.heads(list(params.targets))
    found = {}
    for task in params.targets:
        chosen = shared_out(select(zoo.data[task], params.probe), share, params.seed, task)
        state, expert = (read_features(inputs.features[who][task]) for who in (params.state, "expert"))
        rows = torch.as_tensor(chosen.adapt_rows)
        found[task] = TaskFeatures(
            state=state["test"],
            expert=expert["test"],
            state_adapt=state[chosen.adapt_source][rows],
            expert_adapt=expert[chosen.adapt_source][rows],
            labels=torch.as_tensor(zoo.data[task].labels("test")[chosen.test]),
            head=heads[task],
            chosen=chosen,
            graded=bool(zoo.manifest.task_table[task].grades),
        )
    return found


def shared_out(chosen: Selection, share: float, seed: int, task: str) -> Selection:
    """Return a selection with a random share of its adaptation images, at least one, in their order."""
    if share >= 1 or not len(chosen.adapt_rows):
        return chosen
    count = max(1, round(share * len(chosen.adapt_rows)))
    order = torch.randperm(len(chosen.adapt_rows), generator=generator_for(seed, task, "share")).numpy()
    return replace(chosen, adapt_rows=np.sort(chosen.adapt_rows[order[:count]]))


def _deep(
    calibrator: Calibrator,
    zoo: Zoo,
    data: Mapping[str, TaskFeatures],
    inputs: CalibrateInputs[Path],
    params: CalibrateParams,
    config: Any,
    watch: _Watch,
    every: int,
    output: Path,
) -> tuple[dict[str, Tensor], Any, dict[str, Any]]:
    """Train a calibrator that acts inside the encoder; its metrics are computed at the end, not on the way."""
    from ...zoo.encoders.backbone import architecture, prefix_of, preprocessing, to_tensor

    training = {task: data[task] for task in params.tasks}
    preprocess = preprocessing(zoo.folder, zoo.manifest)
    device = torch.device(watch.tools.device)
    encoder = encoder_of(zoo, params.state, inputs.merge).to(device)
    images = {
        task: to_tensor(
            zoo.data[task].samples(
                part.chosen.adapt_source,
                (part.chosen.test if part.chosen.adapt_source == "test" else part.chosen.adapt)[part.chosen.adapt_rows],
            ),
            preprocess,
        )
        for task, part in training.items()
    }
    for task, pixels in images.items():
        check_rows(task, len(pixels), len(pixels), config.batch_size)
    teachers = {}
    for task in training:
        watch.tools.progress(0.0, f"what the expert of {task} does inside")
        expert = encoder_of(zoo, params.experts[task]).to(device)
        teachers[task] = calibrator.teach(expert, images[task], config)
    merge = learned = None
    if params.joint is not None:
        merge = linear_merge(zoo, params.joint, inputs.merge, params.seed, watch.tools).to(device)
    report = fit_deep(calibrator, encoder, images, teachers, config, params.seed, watch.loss_only, every, merge=merge)
    if merge is not None:
        encoder = save_learned(calibrator, merge, zoo, output, watch.tools).to(device)
        learned = {"merging": coefficients_of(calibrator, merge, prefix_of(architecture(zoo.folder, zoo.manifest)))}
    corrected = {}
    for task, own in params.targets.items():
        pixels = to_tensor(zoo.data[task].samples("test", data[task].chosen.test), preprocess)
        corrected[task] = calibrator.correct_features(encoder, pixels, own).cpu()
        watch.tools.progress(0.99, f"correcting {task}")
    return corrected, report, learned or {}


def _sigmas(calibrator: Calibrator, data: Mapping[str, TaskFeatures], targets: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the mean predicted σ of every image, where the calibrator predicts one."""
    if not hasattr(calibrator, "sigma"):
        return {}
    return {
        f"sigma/{task}": calibrator.sigma(data[task].state, own).mean(dim=1).contiguous().float()
        for task, own in targets.items()
    }


class _Watch:
    """Measures both splits while a calibrator is trained, reports, and stops it when the run is cancelled."""

    def __init__(self, name: str, data: Mapping[str, TaskFeatures], steps: int, tools: StepTools) -> None:
        self.name, self.data, self.steps, self.tools = name, data, steps, tools
        self.curve: list[list[float | None]] = []
        self.task_curves: dict[str, list[list[float | None]]] = {}

    def __call__(self, step: int, loss: Mapping[str, float], module: Calibrator) -> bool:
        self._add(step, loss, {task: _measure(self.data[task], module, task) for task in module.tasks})
        return True

    def loss_only(self, step: int, loss: Mapping[str, float], module: Calibrator) -> bool:
        """Monitor deep calibrators, whose features would have to be encoded again to be measured."""
        self._add(step, loss, {task: (None,) * 4 for task in module.tasks})
        return True

    def _add(self, step: int, loss: Mapping[str, float], measured: Mapping[str, tuple[float | None, ...]]) -> None:
        for task, row in measured.items():
            self.task_curves.setdefault(task, []).append([step, loss[task], *row])
        graded = {task for task in measured if self.data[task].graded}
        columns = []
        for number, name in enumerate(COLUMNS[2:]):
            tasks = [task for task in measured if task not in graded or not name.startswith("accuracy")]
            column = [measured[task][number] for task in tasks]
            columns.append(None if None in column or not column else sum(column) / len(column))
        self.curve.append([step, sum(loss.values()) / len(loss), *columns])
        self.tools.metrics({self.name: {"columns": COLUMNS, "curve": self.curve}})
        self.tools.progress(step / self.steps, f"step {step:,} of {self.steps:,}")


@torch.no_grad()
def _measure(part: TaskFeatures, module: Calibrator, task: str) -> tuple[float | None, ...]:
    """Measure L1 bias and accuracy on the adaptation and on the evaluation images of one task."""
    evaluate = torch.as_tensor(part.chosen.evaluate_rows)
    corrected = module.correct(part.state, task)
    adapted = module.correct(part.state_adapt, task)
    predictions = part.head.classes(corrected)
    right = (predictions == part.labels).float()
    labelled = part.chosen.adapt_source == "test" and not part.graded
    return (
        float((adapted - part.expert_adapt).abs().mean()),
        float((corrected - part.expert)[evaluate].abs().mean()),
        100 * float(right[torch.as_tensor(part.chosen.adapt_rows)].mean()) if labelled else None,
        None if part.graded else 100 * float(right[evaluate].mean()),
    )
