"""A probe of a second or two that measures what an estimate rests on, on this machine and for these sizes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ...catalog import CALIBRATORS, params_of
from ...features import choose_device, encode
from ...recipe import Recipe
from ...zoo.encoders.backbone import build_encoder
from ...zoo.modalities import of_config
from ..rates import Rates, add_rate, keep_rates, known_rates
from ..tools import StepTools
from .estimate import Facts, step_name

READ = 128 * 2**20  # bytes of a file that are read
BLOCK = 2**24  # values that are added
SIDE = 768  # of the matrices that are multiplied
IMAGES = 8
PAIRS = 64  # rows of made features a task, unless a step takes more
STEPS = 8
STALE = 6 * 3600.0  # seconds; what was measured on a busy machine is not believed for long
SMALL = 0.05  # an encoder is run for at least so many seconds, so that a small one is not measured by its start
LONG = 10.0  # seconds from which it is run once


def probe(file: Path, config: Mapping[str, Any], facts: Facts, recipe: Recipe, tools: StepTools) -> Rates:
    """Measure what is not known yet and remember it.

    Args:
        file: a checkpoint to read from.
        config: the architecture.
        facts: sizes of the zoo.
        recipe: its calibrators are tried.
        tools: store, threads and progress of the running step.

    Returns:
        The rates of this machine.
    """
    device = choose_device()
    cores = os.cpu_count() or 1
    rates = known_rates(tools.store)
    share = cores / max(tools.threads, 1)
    stale = time.time() - rates.measured > STALE
    if stale or (rates.device, rates.cores) != (_title(device), cores):
        tools.progress(0.0, "Measuring this machine")
        rates = keep_rates(
            tools.store,
            device=_title(device),
            cores=cores,
            measured=time.time(),
            encode={},
            step={},
            read=_read(file),
            arithmetic=_arithmetic(),
            matmul=share * _matmul(),
        )
    if facts.images and facts.tower.name not in rates.encode:
        tools.progress(0.4, "Measuring the encoder")
        on_cpu = share if device.type == "cpu" else 1.0
        rate = on_cpu * facts.tower.flops * _encode(config, device)
        rates = add_rate(tools.store, "encode", facts.tower.name, rate)
    for name, seconds in _steps(recipe, facts, rates, tools):
        rates = add_rate(tools.store, "step", name, seconds)
    return rates


def _read(file: Path) -> float:
    """Measure the bytes a second out of a checkpoint, into fresh memory."""
    size = min(file.stat().st_size, READ)
    with file.open("rb", buffering=0) as stream:
        started = time.perf_counter()
        got = len(stream.read(size))
        return max(got, 1) / max(time.perf_counter() - started, 1e-6)


def _arithmetic() -> float:
    """Measure the bytes a second when float32 values are read, added to others and written."""
    total, part = torch.zeros(BLOCK), torch.ones(BLOCK)
    seconds = _best(lambda: total.add_(part, alpha=0.5), 3)
    return part.nbytes / seconds


def _matmul() -> float:
    """Measure the operations a second of a float32 product with the threads of this process."""
    one, other = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    return 2 * SIDE**3 / _best(lambda: one @ other, 4)


def _encode(config: Mapping[str, Any], device: torch.device) -> float:
    """Measure the samples a second through an encoder with constant weights; its speed does not depend on them."""
    encoder = build_encoder(config)
    for tensor in encoder.state_dict().values():
        tensor.fill_(0.01)
    count = IMAGES if device.type == "cpu" else 16 * IMAGES

    def run(many: int) -> float:
        samples, preparation = of_config(config).blank(config, many)
        started = time.perf_counter()
        encode(encoder, samples, preparation, device, lambda fraction, message="": None)
        return time.perf_counter() - started

    run(1)
    seconds = run(count)
    while seconds < SMALL:
        count *= 8
        seconds = run(count)
    again = (run(count) for _ in range(2) if seconds < LONG)  # other programs may have held it up
    return count / min([seconds, *again])


def _steps(recipe: Recipe, facts: Facts, rates: Rates, tools: StepTools) -> Iterator[tuple[str, float]]:
    """Measure the seconds of a training step of every calibrator of the output that was not measured yet."""
    for call in recipe.calibrators:
        row = CALIBRATORS[call.method]
        if row.deep or not facts.in_domain or step_name(call, facts) in rates.step:
            continue
        tools.progress(0.7, f"Measuring {row.title}")
        config = params_of(row, {**call.params, "steps": STEPS})
        pairs = {task: torch.randn(max(PAIRS, config.batch_size), facts.tower.dim) for task in facts.in_domain}
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            row.load()().fit(pairs, pairs, config, 0)
            started = time.perf_counter()
            row.load()().fit(pairs, pairs, config, 0)
            yield step_name(call, facts), (time.perf_counter() - started) / STEPS
        finally:
            torch.set_num_threads(threads)


def _best(action: Callable[[], Any], times: int) -> float:
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return max(min(seconds), 1e-9)


def _title(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
