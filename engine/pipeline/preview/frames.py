"""Frames of a film made in memory: the features of one merge for all tasks at once, calibrators of many merges at once.

Nothing of a merge is written, no task is a step of its own, and modules of several frames train side by side; numbers
are those of the runs' own steps, to the rounding of a sum.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...calibration.output import OutputCalibrator
from ...catalog import CALIBRATORS, MERGE_METHODS, params_of, row_of
from ...errors import CalibrationError
from ...features import Batches
from ...zoo.images.splits import Selection, select
from ..run.calibrating import MONITORED, CalibrateParams, shared_out
from ..run.encoding import read_features
from ..sources import Sources
from ..steps import SHARE, UNHASHED, A, Inputs, NoInputs, StepParams, apart, step
from .models import Models, Side, contents_of, encode_together, side_of
from .resident import KEEPER

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools

MOST = 200  # images a task, at most; more are encoded task by task, as a run does
BESIDE = 12  # frames whose modules train side by side


@dataclass(frozen=True)
class Shot:
    """The parts of one frame, before it is planned."""

    side: Side
    expert: Mapping[str, str]  # task → key of the expert's features
    calibrators: Mapping[str, tuple[str, CalibrateParams]]  # by name: the key that a run's step has, its parameters


@dataclass(frozen=True)
class Made:
    """Keys of what a frame is read from."""

    features: str
    calibrators: Mapping[str, str]  # by name


class FrameParams(StepParams):
    """Parameters of the step of one frame."""

    keys: dict[str, str]  # task → key of the features that a run would leave
    side: Side = apart()
    sources: Sources = apart()


@step("frame", label="Making a frame", params=FrameParams, gpu=True, threads=SHARE, cost=2.0)
def frame(inputs: NoInputs[Path], params: FrameParams, output: Path, tools: StepTools) -> None:
    """Merge in memory and encode the images that are looked at and those that are adapted on.

    Writes ``features.safetensors`` with ``test/TASK`` (n, dim) and, where it is adapted on, ``adapt/TASK`` (m, dim).
    """
    resident = KEEPER.take(params.sources, contents_of([params.side]))
    wanted, names, samples = [], [], []
    for task, one in params.side.encoded["merged"].items():
        chosen, _ = resident.chosen(task, one.probe)
        rows = {"test": chosen.test}
        if chosen.adapt is not None and one.adapt:
            rows["adapt"] = chosen.adapt
        for split, own in rows.items():
            wanted.append(one)
            names.append(f"{split}/{task}")
            samples.append(resident.samples(task, own, split))
    made = encode_together(Models(resident, params.side, tools), wanted, samples, Batches())
    save_arrays(dict(zip(names, made, strict=True)), output / "features.safetensors")


class RepairParams(StepParams):
    """Parameters of the step that trains the calibrators of several frames."""

    keys: dict[str, str]  # frame → key of the calibrator that a run would leave
    call: CalibrateParams = apart()  # the same in every frame


@dataclass(frozen=True)
class RepairInputs(Inputs[A]):
    """Inputs of that step."""

    frames: Mapping[str, A] = field(default_factory=dict, metadata=UNHASHED)  # by number
    expert: Mapping[str, A] = field(default_factory=dict, metadata=UNHASHED)  # features by task


@step("repair", label="Training calibrators", params=RepairParams, inputs=RepairInputs, cost=5.0, threads=1)
def repair(inputs: RepairInputs[Path], params: RepairParams, output: Path, tools: StepTools) -> None:
    """Train one calibrator for each of several frames, side by side where their modules do not share anything.

    Writes, in a folder for each frame, ``corrected.safetensors`` as the step of a run does.

    Raises:
        CalibrationError: training of one of them diverged.
    """
    call = params.call
    row = row_of(CALIBRATORS, call.method, "calibrator")
    config = params_of(row, call.params)
    zoo = call.sources.open()
    chosen = {
        task: shared_out(select(zoo.data[task], call.probe), config.share, call.seed, task) for task in call.tasks
    }
    expert = {task: _adapted(read_features(inputs.expert[task]), chosen[task]) for task in call.tasks}
    states = {number: load_file(folder / "features.safetensors") for number, folder in inputs.frames.items()}
    separate = _is_separate(row.load()(), config)
    groups = [list(states)] if separate else [[number] for number in states]
    for turn, numbers in enumerate(groups):
        calibrator: OutputCalibrator = row.load()()
        names = {f"{number}/{task}": task for number in numbers for task in call.tasks}
        merged = {name: _adapted(_split(states, name), chosen[task]) for name, task in names.items()}
        target = {name: expert[task] for name, task in names.items()}
        part = tools.part(turn / len(groups), (turn + 1) / len(groups))

        def watch(step: int, *_: Any, part: Any = part) -> bool:
            part(step / config.steps, f"step {step:,} of {config.steps:,}")
            return True

        every = max(1, config.steps // MONITORED)
        report = calibrator.fit(merged, target, config, call.seed, watch, every, drawn_as=names)
        if report.diverged_at is not None:
            raise CalibrationError(f"{row.title} diverged at step {report.diverged_at} in one of several frames.")
        for number in numbers:
            corrected = {
                task: calibrator.correct(states[number][f"test/{task}"], f"{number}/{own}")
                for task, own in call.targets.items()
            }
            (output / number).mkdir()
            kept = {task: tensor.contiguous().float() for task, tensor in corrected.items()}
            save_file(kept, output / number / "corrected.safetensors")


def shot_of(run: RunSteps, images: int | str) -> Shot | None:
    """Return what a frame is made of in memory; None where it takes the steps of a run.

    Those are taken where many images are looked at, where the merge learns, where a calibrator acts inside the encoder,
    and where features are added up and nothing is trained on them.

    Args:
        run: of the frame's recipe; it gets steps that the film may not need.
        images: that are looked at, of a task.
    """
    calls = [call for call in run.recipe.calibrators if call.on == "merged"]
    deep = any(CALIBRATORS[call.method].deep for call in calls)
    if not isinstance(images, int) or images > MOST or deep or MERGE_METHODS[run.recipe.merge.method].learns:
        return None
    if run.summed and not calls:
        return None
    made = run.seed(run.recipe.seeds[0])
    keys = {call.name: made.calibrator[call.name] for call in calls}
    calibrators = {name: (key, run.steps[key].params) for name, key in keys.items()}
    return Shot(side_of(run, made), made.features["expert"], calibrators)


def plan_shots(
    run: RunSteps, shots: Mapping[int, Shot], lost: Mapping[str, str]
) -> tuple[dict[int, Made], dict[int, str]]:
    """Plan the steps of frames that are made in memory.

    Args:
        run: whose steps they join.
        shots: by frame.
        lost: key of a step that failed → why.

    Returns:
        Frames that can be made, and those that failed, with the reason. Frames that are in neither trained beside one
        that diverged; each of them has to train by itself.
    """
    keys, failed = {}, {}
    for number, shot in shots.items():
        key = run.make(frame, FrameParams(keys=shot.side.keys["merged"], side=shot.side, sources=run.sources))
        keys[number] = key
        if key in lost:
            failed[number] = lost[key]
    left = {number: shot for number, shot in shots.items() if number not in failed}
    trained: dict[int, dict[str, str]] = {number: {} for number in left}
    for name, numbers in _alike(left):
        call = left[numbers[0]].calibrators[name][1]
        params = RepairParams(keys={str(n): left[n].calibrators[name][0] for n in numbers}, call=call)
        expert = {task: left[numbers[0]].expert[task] for task in call.tasks}
        inputs = RepairInputs[str]({str(n): keys[n] for n in numbers}, expert)
        title = f"Training {CALIBRATORS[call.method].title} for {len(numbers)} frames"
        key = run.make(repair, params, inputs, title)
        for number in numbers:
            if key in lost:
                trained.pop(number, None)
            elif number in trained:
                trained[number][name] = key
    return {number: Made(keys[number], own) for number, own in trained.items()}, failed


def _alike(shots: Mapping[int, Shot]) -> list[tuple[str, list[int]]]:
    """Return calibrators by name with frames that train them in the same way, so many at a time."""
    groups: dict[tuple[str, str], list[int]] = {}
    for number, shot in shots.items():
        for name, (_, call) in shot.calibrators.items():
            groups.setdefault((name, json.dumps(call.identity(), sort_keys=True)), []).append(number)
    found = []
    for (name, _), numbers in groups.items():
        parts = -(-len(numbers) // BESIDE)
        found += [(name, numbers[part::parts]) for part in range(parts)]
    return found


def _is_separate(calibrator: OutputCalibrator, config: Any) -> bool:
    calibrator.config = config
    return calibrator.separate


def _split(states: Mapping[str, Mapping[str, Tensor]], name: str) -> dict[str, Tensor]:
    """Return the features of one frame and task, by split."""
    number, task = name.split("/", 1)
    own = states[number]
    return {split: own[f"{split}/{task}"] for split in ("test", "adapt") if f"{split}/{task}" in own}


def _adapted(features: Mapping[str, Tensor], chosen: Selection) -> Tensor:
    """Return the features of the adaptation images."""
    return features[chosen.adapt_source][torch.as_tensor(chosen.adapt_rows)]
