"""The step that turns a task's images into features through one model."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ...features import Batches, choose_device, encode
from ...features.linearised import Linearised
from ...preparation import Preparation
from ...recipe import Probe
from ...zoo.encoders.architecture import tower_size
from ...zoo.encoders.backbone import architecture, load_encoder, preprocessing
from ...zoo.folder import Zoo
from ...zoo.images.readers.source import LABELLED
from ...zoo.images.splits import select
from ..rates import add_rate, known_rates
from ..sources import Sources
from ..steps import SHARE, UNHASHED, A, Inputs, StepParams, apart, step
from .merging import load_merged, load_merged_encoder

if TYPE_CHECKING:
    from ..tools import StepTools

MEASURED = 0.2  # seconds of encoding that say how fast an encoder is
FASTER = 1.2  # times what was foreseen, from which it is remembered


class EncodingParams(StepParams):
    """Parameters of encoding one task's images with one model."""

    model: str  # base, merged, an expert or a reference
    digest: str  # of the model's weights, or the key of the merge
    task: str
    data: str  # digest of the task's images
    probe: Probe
    architecture: dict[str, Any]
    preprocess: Preparation
    weights_of: str | None = None  # the task, for a merge that makes a model for each
    around: str | None = None  # digest of the base, where the model is evaluated linearised around it
    coefficients: dict[str, float] | None = apart(None)  # of experts whose linearised features add up to the model's
    sources: Sources = apart()


class FeaturesParams(EncodingParams):
    """Parameters of the features step."""

    adapt: bool  # whether adaptation images are encoded too


@dataclass(frozen=True)
class EncodingInputs(Inputs[A]):
    """Inputs of steps that encode."""

    merged: A | None = None  # the merge, where its model encodes
    # Another way to the same features, of the same images: see `summing`.
    base: A | None = field(default=None, metadata=UNHASHED)
    experts: Mapping[str, A] = field(default_factory=dict, metadata=UNHASHED)  # linearised, by name


def _correct(zoo: Zoo, images: int, seconds: float, device: torch.device, tools: StepTools) -> None:
    """Remember that the encoder is faster than the look before a run found it, which other programs may hold up."""
    tower = tower_size(architecture(zoo.folder, zoo.manifest))
    if tower is None or device.type != "cpu" or seconds < MEASURED:
        return
    rate = (os.cpu_count() or 1) / max(tools.threads, 1) * tower.flops * images / seconds
    if rate > FASTER * known_rates(tools.store).encode.get(tower.name, rate):
        add_rate(tools.store, "encode", tower.name, rate)


@step("features", label="Encoding", params=FeaturesParams, inputs=EncodingInputs, gpu=True, threads=SHARE)
def features(inputs: EncodingInputs[Path], params: FeaturesParams, output: Path, tools: StepTools) -> None:
    """Encode the images of one task that a probe selects.

    Writes ``features.safetensors`` with ``test`` (n, dim) and, where the protocol adapts on it, ``adapt`` (m, dim).
    """
    started = time.perf_counter()
    if inputs.experts:
        write_sum(inputs, params, output, started)
        return
    zoo = params.sources.open()
    data = zoo.data[params.task]
    for split in LABELLED:  # also those that no step reads: a wrong class list does not stop at one split
        if data.has(split):
            data.labels(split)
    chosen = select(data, params.probe)
    encoder = encoder_for(zoo, inputs, params)
    device = choose_device()
    place = _place(params, device.type)
    batches = Batches(known_rates(tools.store).batches.get(place, 0))
    images = {"test": data.samples("test", chosen.test)}
    if chosen.adapt is not None and params.adapt:
        images["adapt"] = data.samples("adapt", chosen.adapt)
    total = sum(len(part) for part in images.values())
    tensors: dict[str, Tensor] = {}
    done, began = 0, time.perf_counter()
    for name, part in images.items():
        offset = done

        def progress(fraction: float, message: str = "", offset: int = offset, count: int = len(part)) -> None:
            tools.progress((offset + fraction * count) / total, message)

        tensors[name] = encode(encoder, part, preprocessing(zoo.folder, zoo.manifest), device, progress, batches)
        done += len(part)
    _correct(zoo, total, time.perf_counter() - began, device, tools)
    save_file(tensors, output / "features.safetensors")
    facts = {"seconds": round(time.perf_counter() - started, 3), "images": total}
    facts |= {"device": device.type, "batch": batches.size, "halved": batches.halved}
    (output / "features.json").write_text(json.dumps(facts))
    found = batches.halved or device.type == "cuda"  # elsewhere it is what fitted at the moment
    if found and known_rates(tools.store).batches.get(place) != batches.size:
        add_rate(tools.store, "batches", place, batches.size)
    if batches.halved:
        tools.log(f"Memory ran out while encoding; batches of {batches.size} images were used.")


def _place(params: EncodingParams, device: str) -> str:
    """Return the name under which a batch size that served is remembered: device, architecture, samples' extent."""
    tower = tower_size(params.architecture)
    return f"{device}-{tower.name if tower else 'other'}-{params.preprocess.extent}"


def read_features(folder: Path) -> dict[str, Tensor]:
    """Return the matrices that a features step wrote, by array name."""
    return load_file(folder / "features.safetensors")


def write_sum(inputs: EncodingInputs[Path], params: EncodingParams, output: Path, started: float) -> None:
    """Write the features of a linearised sum of task vectors, from those of base and experts on the same images.

    f_lin(x; θ_0 + Σ λ_k τ_k) = f(x; θ_0) + Σ λ_k (f_lin(x; θ_k) − f(x; θ_0)); added up in float64.

    Source: Ortiz-Jimenez et al., NeurIPS 2023, arXiv:2305.12827, Eq. (3).
    """
    base, coefficients = read_features(inputs.base), params.coefficients or {}
    found = {name: rows.double() for name, rows in base.items()}
    for expert, folder in inputs.experts.items():
        for name, rows in read_features(folder).items():
            found[name] += coefficients[expert] * (rows.double() - base[name].double())
    save_file({name: rows.float() for name, rows in found.items()}, output / "features.safetensors")
    facts = {"seconds": round(time.perf_counter() - started, 3), "images": 0}  # none went through an encoder
    (output / "features.json").write_text(json.dumps({**facts, "device": "cpu", "batch": 0, "halved": False}))


def encoder_for(zoo: Zoo, inputs: EncodingInputs[Path], params: EncodingParams) -> nn.Module:
    """Return the encoder that a step asks for, kept between the tasks that one worker encodes with it."""
    merged, config = str(inputs.merged or ""), json.dumps(params.architecture, sort_keys=True)
    return _encoder(str(zoo.folder), config, params.model, params.digest, merged, params.weights_of, params.around)


def encoder_of(zoo: Zoo, model: str, merged: Path | None = None) -> nn.Module:
    """Build the encoder of ``pretrained``, of the (static) ``merged`` model in a folder, or of an expert by name."""
    name = "base" if model == "pretrained" else model
    weights = load_merged(merged, zoo.weights("base")) if model == "merged" else zoo.weights(name)
    return load_encoder(architecture(zoo.folder, zoo.manifest), weights)


@lru_cache(maxsize=2)
def _encoder(
    folder: str, described: str, model: str, digest: str, merged: str, task: str | None, around: str | None = None
) -> nn.Module:
    """Build the encoder of a model, kept between the tasks of one worker (``digest`` tells versions)."""
    zoo, config = Zoo.open(folder), json.loads(described)
    if model == "merged":
        encoder = load_merged_encoder(Path(merged), zoo.weights("base"), config, task)
    else:
        encoder = load_encoder(config, zoo.weights(model))
    if around is None:
        return encoder
    return Linearised(encoder, dict(load_encoder(config, zoo.weights("base")).named_parameters())).eval()
