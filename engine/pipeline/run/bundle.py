"""The last step of a run: everything that it leaves behind, in one folder."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from safetensors.numpy import load_file, save_file

from ...analysis import accuracy, bias, salience, samples
from ...catalog import TRANSFORMS, params_of
from ...masks import lwptv_masks
from ...recipe import RESERVED_STATES, TIMED, Recipe
from ...report import (
    Averages,
    BiasParts,
    CalibratorPart,
    MergedPart,
    Report,
    SaliencePart,
    SampleCounts,
    TaskSummary,
    ZooIdentity,
)
from ...version import __version__
from ...zoo.encoders.heads import ZeroShotHead, heads_in_words
from ...zoo.folder import Zoo, own_experts, several_of_a_task
from ...zoo.images.splits import Selection, select
from ...zoo.task_data import graded_in_words
from ..sources import Sources
from ..steps import INLINED, A, Inputs, StepParams, apart, flat, step
from .merging import link, place_merged

if TYPE_CHECKING:
    from ..tools import StepTools

Features = dict[str, dict[str, np.ndarray]]  # state → task → (n, dim)


class BundleParams(StepParams):
    """Parameters of the bundle step."""

    recipe: dict[str, Any]  # without the zoo, which its digest stands for
    zoo: str  # digest
    recipe_zoo: str = apart()  # the zoo as the recipe names it
    sources: Sources = apart()


@dataclass(frozen=True)
class SeedInputs(Inputs[A]):
    """Artefacts of one seed of a run."""

    merge: A
    features: Mapping[str, Mapping[str, A]] = field(default_factory=dict, metadata=INLINED)  # state → task
    calibrator: Mapping[str, A] = field(default_factory=dict)  # by name


@dataclass(frozen=True)
class BundleInputs(Inputs[A]):
    """Inputs of the bundle step."""

    merge: A  # of the first seed
    salience: A | None = None  # of two experts or more
    seeds: Mapping[int, SeedInputs[A]] = field(default_factory=dict, metadata=INLINED)
    heads: A | None = None  # where they are built


@dataclass
class Measured:
    """Features, accuracies and biases of one training seed."""

    evaluate: Features = field(default_factory=dict)
    adapt: Features = field(default_factory=dict)
    sigma: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    accuracy: dict[str, dict[str, float | None]] = field(default_factory=dict)
    bias: dict[str, dict[str, Any]] = field(default_factory=dict)
    table: pd.DataFrame | None = None


@dataclass(frozen=True)
class Scene:
    """The zoo seen through a recipe: its tasks, their images and heads."""

    zoo: Zoo
    recipe: Recipe
    chosen: dict[str, Selection]
    labels: dict[str, np.ndarray]  # of the evaluation images
    heads: dict[str, ZeroShotHead]
    warnings: list[str]

    @property
    def classes(self) -> dict[str, int]:
        """Return the number of classes by task."""
        return {task: len(self.zoo.manifest.task_table[task].classes) for task in self.chosen}


@step("bundle", label="Measuring accuracy and bias", params=BundleParams, inputs=BundleInputs, version=2)
def bundle(inputs: BundleInputs[Path], params: BundleParams, output: Path, tools: StepTools) -> None:
    """Measure every state and write the report, samples, features, weights and calibrators."""
    recipe = Recipe.model_validate({**params.recipe, "zoo": params.recipe_zoo})
    scene = _scene(recipe, params.sources.open(), inputs.seeds[recipe.seeds[0]])
    measured = []
    for number, seed in enumerate(recipe.seeds):
        parts = inputs.seeds[seed]
        result = _measure(scene, parts)
        measured.append(result)
        folder = output if number == 0 else output / "seeds" / str(seed)
        _write_seed(folder, parts, result, recipe, scene.zoo)
        tools.progress((number + 1) / (len(recipe.seeds) + 1), f"seed {seed}")
    report = _report(scene, measured, inputs, params.zoo, tools.key)
    (output / "report.json").write_text(report.model_dump_json(indent=1), "utf-8")
    (output / "recipe.yaml").write_text(report.recipe.to_yaml(), "utf-8")


def _scene(recipe: Recipe, zoo: Zoo, first: SeedInputs[Path]) -> Scene:
    tasks = list(first.features.get("pretrained", ()))
    chosen = {task: select(zoo.data[task], recipe.probe) for task in tasks}
    labels = {
        task: zoo.data[task].labels("test")[selection.test[selection.evaluate_rows]]
        for task, selection in chosen.items()
    }
    heads, warnings = zoo.heads(tasks) if tasks else ({}, [])
    warnings += [sentence for task in tasks if (sentence := zoo.data[task].skipped())]
    warnings += [graded_in_words(zoo.manifest.task_table[t]) for t in tasks if zoo.manifest.task_table[t].grades]
    if not tasks:
        warnings.append("The zoo has no heads or no data, so nothing could be scored: only weights were merged.")
    return Scene(zoo, recipe, chosen, labels, heads, list(warnings))


def _measure(scene: Scene, parts: SeedInputs[Path]) -> Measured:
    """Measure accuracy, bias and the table of samples of one seed."""
    result = Measured()
    _gather(scene, parts, result)
    frames = []
    for task, head in scene.heads.items():
        states = {state: tasks[task] for state, tasks in result.evaluate.items() if task in tasks}
        selection = scene.chosen[task]
        frames.append(
            samples.sample_table(
                task,
                states,
                head.arrays(),
                scene.labels[task],
                selection.test[selection.evaluate_rows],
                "evaluate",
                states.get("expert"),
                {state: tasks[task] for state, tasks in result.sigma.items() if task in tasks},
            )
        )
    if frames:
        result.table = pd.concat(frames, ignore_index=True)
        right = result.table.assign(right=100.0 * (result.table.prediction == result.table.label))
        table = scene.zoo.manifest.task_table
        for (state, task), value in right.groupby(["state", "task"], sort=False).right.mean().items():
            result.accuracy.setdefault(state, {})[task] = None if table[str(task)].grades else float(value)
    experts = result.evaluate.get("expert", {})
    for state, tasks in result.evaluate.items():
        if state != "expert" and experts:
            result.bias[state] = bias.bias_of(tasks, experts, scene.labels, scene.classes)
    return result


def _gather(scene: Scene, parts: SeedInputs[Path], result: Measured) -> None:
    """Read the features of every state, by split."""
    for name, path in parts.calibrator.items():
        _gather_corrected(scene, name, path, result)
    for state, tasks in parts.features.items():
        for task, path in tasks.items():
            found = load_file(path / "features.safetensors")
            selection = scene.chosen[task]
            result.evaluate.setdefault(state, {})[task] = found["test"][selection.evaluate_rows]
            if selection.adapt_source in found:
                result.adapt.setdefault(state, {})[task] = found[selection.adapt_source][selection.adapt_rows]


def _gather_corrected(scene: Scene, name: str, path: Path, result: Measured) -> None:
    for key, values in load_file(path / "corrected.safetensors").items():
        task = key.removeprefix("sigma/")
        target = result.sigma if key.startswith("sigma/") else result.evaluate
        target.setdefault(name, {})[task] = values[scene.chosen[task].evaluate_rows]


def _write_seed(folder: Path, parts: SeedInputs[Path], result: Measured, recipe: Recipe, zoo: Zoo) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    place_merged(parts.merge, folder, zoo)
    for call in recipe.calibrators:
        source = parts.calibrator.get(call.name)
        if source is not None:
            link(source / "calibrator.safetensors", folder / "calibrators" / f"{call.name}.safetensors")
            if (source / "merged.safetensors").exists():  # it learned coefficients: the model that it acts in
                link(source / "merged.safetensors", folder / "calibrators" / call.name / "merged.safetensors")
    tensors = {
        f"{state}/{task}/{split}": np.ascontiguousarray(values)
        for split, states in (("evaluate", result.evaluate), ("adapt", result.adapt))
        for state, tasks in states.items()
        for task, values in tasks.items()
    }
    if tensors:
        save_file(tensors, folder / "features.safetensors")
    if result.table is not None:
        result.table.to_parquet(folder / "samples.parquet", index=False, compression="zstd")


def _report(scene: Scene, measured: list[Measured], inputs: BundleInputs[Path], zoo: str, identity: str) -> Report:
    recipe, manifest, first = scene.recipe, scene.zoo.manifest, inputs.seeds[scene.recipe.seeds[0]]
    mean = {state: _over_seeds(measured, state, np.mean) for state in measured[0].accuracy}
    merged = json.loads((inputs.merge / "merged.json").read_text())
    calibrations = {
        call.name: json.loads((first.calibrator[call.name] / "calibration.json").read_text())
        for call in recipe.calibrators
    }
    if merged["kind"] == "per_task" and any(manifest.task_table[task].domain == "out" for task in scene.chosen):
        scene.warnings.append(
            "The merged model has weights for the experts' tasks only, so it is not scored on out-of-domain tasks."
        )
    scene.warnings.extend(merged.get("warnings", ()))
    for name in calibrations:
        scene.warnings.extend(_warnings_of(name, inputs))
    scene.warnings.extend(_out_of_memory(inputs))
    experts = tuple(name for name, _ in scene.zoo.choose(recipe))
    expert_of, several = own_experts(manifest, experts), several_of_a_task(manifest, experts)
    return Report(
        warnings=tuple(scene.warnings),
        recipe=recipe,
        identity=identity,
        zoo=ZooIdentity(name=manifest.name, title=manifest.title, digest=zoo),
        tasks={
            task: TaskSummary(
                title=manifest.task_table[task].label,
                domain=manifest.task_table[task].role,
                classes=manifest.task_table[task].classes,
                expert=expert_of.get(manifest.task_table[task].shifted_from or task),
                others=tuple(several.get(task, ())[1:]),
                head=heads_in_words(scene.zoo.folder, manifest, task),
                graded=bool(manifest.task_table[task].grades),
            )
            for task in scene.chosen
        },
        experts=experts,
        samples={
            task: SampleCounts(
                adapt=len(selection.adapt_rows),
                evaluate=len(selection.evaluate_rows),
                validation=scene.zoo.data[task].lengths.get("val", 0),
                available=selection.available,
            )
            for task, selection in scene.chosen.items()
        },
        protocol=recipe.probe.protocol,
        split_seed=recipe.probe.split_seed,
        seeds=recipe.seeds,
        accuracy=mean,
        accuracy_sd={state: _over_seeds(measured, state, _sd) for state in mean} if len(measured) > 1 else {},
        average=_averages(mean, {task: manifest.task_table[task].role for task in scene.chosen}),
        bias={state: BiasParts.model_validate(_mean_bias(measured, state)) for state in measured[0].bias},
        salience=_salience(inputs.salience, recipe),
        merged=MergedPart.model_validate({name: merged[name] for name in MergedPart.model_fields}),
        calibrators={
            call.name: CalibratorPart(
                method=call.method,
                on=call.on,
                parameters=calibrations[call.name]["parameters"],
                needs_task_id=calibrations[call.name]["needs_task_id"],
                diverged_at=calibrations[call.name]["diverged_at"],
                curve_columns=calibrations[call.name]["columns"],
                curve=calibrations[call.name]["curve"],
                task_curves=calibrations[call.name].get("task_curves", {}),
                merging=calibrations[call.name].get("merging", {}),
            )
            for call in recipe.calibrators
        },
        timing_s=_timing(inputs, merged, calibrations),
        environment=_environment(),
    )


def _over_seeds(measured: list[Measured], state: str, reduce: Any) -> dict[str, float | None]:
    return {
        task: None if known is None else float(reduce([result.accuracy[state][task] for result in measured]))
        for task, known in measured[0].accuracy[state].items()
    }


def _sd(values: list[float]) -> float:
    return float(np.std(values, ddof=1))


def _mean_bias(measured: list[Measured], state: str) -> dict[str, Any]:
    """Average the bias part of a state over seeds (None where a seed has none)."""

    def mean(values: list[Any]) -> Any:
        if isinstance(values[0], (tuple, list)):
            return tuple(mean(list(column)) for column in zip(*values, strict=True))
        return None if any(value is None for value in values) else float(np.mean(values))

    first = measured[0].bias[state]
    return {
        part: {task: mean([result.bias[state][part][task] for result in measured]) for task in first[part]}
        for part in first
    }


def _averages(table: Mapping[str, dict[str, float | None]], domains: Mapping[str, str]) -> dict[str, Averages]:
    """Average the accuracies of every state; out of domain a calibrated state is the model itself, so it has none."""
    found = {state: accuracy.averages(row, domains) for state, row in table.items()}
    merged, expert = (found.get(state, {}).get("in") for state in ("merged", "expert"))
    parts = {}
    for state, values in found.items():
        known = None not in (merged, expert, values["in"]) and state not in RESERVED_STATES
        recovered = accuracy.recovered_share(merged, values["in"], expert) if known else None
        parts[state] = Averages.model_validate({**values, "recovered": recovered})
    return parts


def _salience(folder: Path | None, recipe: Recipe) -> SaliencePart | None:
    if folder is None:
        return None
    document = json.loads((folder / "salience.json").read_text())
    applied = next((call for call in recipe.transforms if call.method == "lwptv"), None)
    eta = params_of(TRANSFORMS["lwptv"], applied.params if applied else {}).eta
    masks, shared = lwptv_masks(np.array(list(document["score"].values())), eta)
    part = salience.salience_part(
        document["layers"],
        document["parameters"],
        document["score"],
        dict(zip(document["score"], masks.tolist(), strict=True)),
        shared.tolist(),
        eta,
        applied is not None,
    )
    return SaliencePart.model_validate(part)


def _warnings_of(name: str, inputs: BundleInputs[Path]) -> list[str]:
    """Return what the trainings of a calibrator warn of, by seed where there are several."""
    found = []
    for seed, own in inputs.seeds.items():
        said = json.loads((own.calibrator[name] / "calibration.json").read_text())["warnings"]
        whose = f"{name}, seed {seed}" if len(inputs.seeds) > 1 else name
        found += [f"{whose}: {warning}" for warning in said]
    return found


def _timing(inputs: BundleInputs[Path], merged: Mapping[str, Any], calibrations: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds of every part when it was computed, which may have been for an earlier run."""
    seconds = sum(facts["seconds"] for facts in _encodings(inputs))
    timing = dict(zip(TIMED, (merged["seconds"], round(seconds, 3)), strict=True))
    return timing | {name: document["seconds"] for name, document in calibrations.items()}


def _out_of_memory(inputs: BundleInputs[Path]) -> list[str]:
    """Tell whether encoding had to take smaller batches; features do not depend on it beyond rounding."""
    facts = [found for found in _encodings(inputs) if found.get("halved")]
    if not facts:
        return []
    least, device = min(found["batch"] for found in facts), facts[0]["device"]
    return [f"Memory of the {device} ran out while encoding, so batches as small as {least} images were used."]


def _encodings(inputs: BundleInputs[Path]) -> list[dict[str, Any]]:
    """Read what every encoding of the run says of itself."""
    files = {path / "features.json" for path in flat(inputs).values()}
    return [json.loads(file.read_text()) for file in sorted(files) if file.exists()]


def _environment() -> dict[str, str]:
    return {
        "mergelens": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "open_clip_torch": version("open_clip_torch"),
        "scikit-learn": version("scikit-learn"),
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }
