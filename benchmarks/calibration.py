"""Times of calibrators and projections against their goals.

Run: python benchmarks/calibration.py [--quick]. Everything runs on one thread. ``peer`` is a plain loop: one task
after another, automatic differentiation, one torch.optim.Adam a task, on the same cached features; its time is that of
a part of the steps, scaled up. ``fresh forwards`` is a loop in the manner of the published programs: both encoders see
every batch anew; a stated number of its steps is measured and scaled up, because all of them would take days. Ratios
and goals are judged by processor seconds of the one thread, because shared machines inflate the clock.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", NUMBA_NUM_THREADS="1")

import argparse
import platform
import sys
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.analysis.projection import joint_projection
from engine.calibration import IntervMerge, ProbSurgery, Surgery, SurgeryV2, fit_deep
from engine.calibration.deep import DeepCalibrator
from engine.catalog.calibrators import ProbSurgeryParams, SurgeryParams
from engine.catalog.deep_calibrators import DeepParams, IntervMergeParams, SurgeryV2Params
from engine.recipe import Probe
from engine.weights import Memory
from engine.zoo.encoders.backbone import architecture, load_encoder, preprocessing, to_tensor
from engine.zoo.folder import Zoo
from engine.zoo.images.splits import select

TASKS, IMAGES, DIM = 8, 500, 512
PEER_STEPS = 200
FRESH_LARGE, FRESH_SMALL = 3, 60  # steps of the loop with fresh forwards that are measured
FRESH_GOAL = 100  # times faster than that loop
Line = tuple[str, tuple[float, float], float | None, float | None]  # work, seconds, goal, peer's seconds
PACKAGES = ("torch", "open_clip_torch", "scikit-learn", "umap-learn", "numpy")


def cached_features() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Merged and expert features of eight tasks, d = 512."""
    generator = torch.Generator().manual_seed(0)
    merged = {f"task{i}": torch.randn(IMAGES, DIM, generator=generator) for i in range(TASKS)}
    return merged, {task: z + 0.1 * torch.randn(z.shape, generator=generator) for task, z in merged.items()}


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds that a call takes: on the clock, and of the processor (which other programs cannot inflate as much)."""
    began, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - used


def peer_seconds(loss_of: Callable, shapes: list[tuple[int, int]], steps: int) -> float:
    """Processor seconds of a plain loop over tasks and steps, scaled to ``steps`` steps of all tasks."""
    merged, expert = cached_features()
    z, target = next(iter(merged.values())), next(iter(expert.values()))
    module = [torch.zeros(shape).uniform_(-0.04, 0.04).requires_grad_() for shape in shapes]
    adam = torch.optim.Adam(module, lr=1e-3)

    def loop() -> None:
        for _ in range(PEER_STEPS):
            rows = torch.randint(0, IMAGES, (16,))
            adam.zero_grad()
            loss_of(z[rows], target[rows], *module).backward()
            adam.step()

    return timed(loop)[1] / PEER_STEPS * steps * TASKS


def surgery_loss(z: torch.Tensor, target: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Surgery's loss, for automatic differentiation."""
    return (z - torch.relu(z @ down.T) @ up.T - target).abs().mean()


def prob_surgery_loss(
    z: torch.Tensor, target: torch.Tensor, narrow: torch.Tensor, mean: torch.Tensor, log_variance: torch.Tensor
) -> torch.Tensor:
    """ProbSurgery's loss, for automatic differentiation."""
    hidden = torch.relu(z @ narrow.T)
    mu, s = hidden @ mean.T, hidden @ log_variance.T
    kl = 0.5 * (mu.square() + s.exp() - s - 1).sum(1).mean()
    return (z - mu - torch.randn_like(mu) * (s / 2).exp() - target).abs().mean() + 1e-4 * kl


def output_rows(steps: int) -> list[Line]:
    """Calibrators of the output."""
    merged, expert = cached_features()
    Surgery().fit(merged, expert, SurgeryParams(steps=50), 0)  # first use of the threads and libraries
    rows = []
    for name, kind, config, goal, peer in [
        ("Surgery r=16", Surgery, SurgeryParams(rank=16, steps=steps), 8.0, (surgery_loss, [(16, DIM), (DIM, 16)])),
        ("Surgery r=128", Surgery, SurgeryParams(rank=128, steps=steps), None, None),
        (
            "ProbSurgery h=128",
            ProbSurgery,
            ProbSurgeryParams(hidden=128, steps=steps),
            30.0,
            (prob_surgery_loss, [(128, DIM), (DIM, 128), (DIM, 128)]),
        ),
        ("ProbSurgery h=128 DFA", ProbSurgery, ProbSurgeryParams(hidden=128, steps=steps, sharing="dfa"), None, None),
    ]:
        calibrator = kind()
        seconds = timed(lambda c=calibrator, p=config: c.fit(merged, expert, p, 0))
        scale = steps / 5000
        theirs = peer_seconds(*peer, steps) if peer else None
        rows.append((f"{name}, 8 x {steps:,} steps", seconds, goal and goal * scale, theirs))
    return rows


@cache
def bundled() -> tuple[nn.Module, dict[str, nn.Module], dict[str, torch.Tensor]]:
    """Open the bundled zoo: the Task Arithmetic merge's encoder, the experts', and adaptation images by task."""
    zoo = Zoo.open("mini8")
    base = zoo.weights("base")
    experts = {expert.task: zoo.weights(expert.name) for expert in zoo.manifest.experts}
    merged = {
        name: base.tensor(name) + 0.3 * sum(expert.tensor(name) - base.tensor(name) for expert in experts.values())
        for name in base.names
    }
    config, preprocess = architecture(zoo.folder, zoo.manifest), preprocessing(zoo.folder, zoo.manifest)
    images = {}
    for task in experts:
        chosen = select(zoo.data[task], Probe())
        rows = (chosen.adapt if chosen.adapt is not None else chosen.test)[chosen.adapt_rows]
        images[task] = to_tensor(zoo.data[task].samples(chosen.adapt_source, rows), preprocess)
    encoders = {task: load_encoder(config, weights).requires_grad_(False) for task, weights in experts.items()}
    return load_encoder(config, Memory(merged)).requires_grad_(False), encoders, images


DEEP = [
    ("IntervMerge rank 1, all blocks, mini8", IntervMerge, IntervMergeParams, {"rank": 1}, 120.0),
    ("SurgeryV2 r=16, mini8", SurgeryV2, SurgeryV2Params, {"rank": 16}, None),
]


def deep_rows(steps: int) -> list[Line]:
    """Calibrators inside the encoder, on the bundled zoo; what the experts do counts, reading images does not."""
    merged, experts, images = bundled()
    rows = []
    for name, kind, params, given, goal in DEEP:
        calibrator, config = kind(), params(steps=steps, **given)

        def work(c: DeepCalibrator = calibrator, p: DeepParams = config) -> None:
            fit_deep(c, merged, images, {task: c.teach(experts[task], x, p) for task, x in images.items()}, p, 0)

        rows.append((f"{name}, 8 x {steps:,} steps", timed(work), goal and goal * steps / 500, None))
    return rows


def fresh_seconds(
    update: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    parameters: list[torch.Tensor],
    merged: nn.Module,
    expert: nn.Module,
    images: torch.Tensor,
    loop_steps: int,
) -> float:
    """Processor seconds of one step of one task in a loop that runs both encoders on every batch.

    Args:
        update: (the merged model's output, the expert's features) → loss.
        parameters: what is trained, by one torch.optim.Adam.
        merged: called on a batch; without gradients where its output alone is corrected.
        expert: the teacher.
        images: pre-processed, to draw batches of 16 from.
        loop_steps: how many steps are measured.
    """
    adam = torch.optim.Adam(parameters, lr=1e-3)

    def loop(count: int) -> None:
        for _ in range(count):
            batch = images[torch.randint(0, len(images), (16,))]
            with torch.no_grad():
                target = expert(batch)
            adam.zero_grad()
            update(merged(batch), target).backward()
            adam.step()

    loop(1)
    return timed(lambda: loop(loop_steps))[1] / loop_steps


def fresh_rows(steps: int, measured: dict[str, float]) -> list[tuple[str, float, int, float]]:
    """Lines (work, our seconds, measured loop steps, the loop's seconds scaled to all steps of eight tasks)."""
    import open_clip.transformer as vit

    small, experts, images = bundled()
    large = [
        vit.VisionTransformer(224, 32, 768, 12, 12, 4.0, output_dim=DIM).eval().requires_grad_(False) for _ in range(2)
    ]
    pictures = torch.randn(32, 3, 224, 224)
    task, expert = next(iter(experts.items()))
    dim = expert.proj.shape[1]
    rows = []
    for name, loss, shapes in (
        ("Surgery r=16", surgery_loss, lambda d: [(16, d), (d, 16)]),
        ("ProbSurgery h=128", prob_surgery_loss, lambda d: [(128, d), (d, 128), (d, 128)]),
    ):
        for encoder, pair, given, d, count in (
            ("ViT-B/32", large, pictures, DIM, FRESH_LARGE),
            ("mini8's encoder", (small, expert), images[task], dim, FRESH_SMALL),
        ):
            module = [torch.zeros(shape).uniform_(-0.04, 0.04).requires_grad_() for shape in shapes(d)]
            frozen = torch.no_grad()(pair[0].forward)
            each = fresh_seconds(lambda z, t, m=module, f=loss: f(z, t, *m), module, frozen, pair[1], given, count)
            ours = measured[f"{name}, 8 x {steps:,} steps"] if d == DIM else None
            if ours is None:
                ours = _own_seconds(name, steps, d)
            rows.append((f"{name}, {encoder}, d = {d}", ours, count, each * steps * TASKS))
    return rows


def _own_seconds(name: str, steps: int, dim: int) -> float:
    """Our processor seconds on features of another width, as for mini8."""
    merged, expert = ({task: z[:, :dim].contiguous() for task, z in side.items()} for side in cached_features())
    kind, config = (
        (Surgery, SurgeryParams(rank=16, steps=steps))
        if name.startswith("Surgery")
        else (ProbSurgery, ProbSurgeryParams(hidden=128, steps=steps))
    )
    return timed(lambda: kind().fit(merged, expert, config, 0))[1]


def projection_rows() -> list[Line]:
    """Joint projections of 4 states x 500 images; the second run, so that nothing is compiled."""
    generator = np.random.default_rng(0)
    centres = 0.5 * generator.normal(size=(TASKS, DIM))
    count = IMAGES // TASKS
    features = {
        state: {f"task{i}": (centres[i] + generator.normal(size=(count, DIM))).astype(np.float32) for i in range(TASKS)}
        for state in ("pretrained", "merged", "surgery", "expert")
    }
    rows = {task: np.arange(count) for task in features["merged"]}
    found = []
    for method, goal in (("pca", None), ("tsne", 5.0), ("umap", 5.0)):
        joint_projection(features, rows, method=method)
        seconds = timed(lambda m=method: joint_projection(features, rows, method=m))
        found.append((f"{method}, {4 * count * TASKS:,} points", seconds, goal, None))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps, goals scaled with them")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print(f"{platform.machine()}, {os.cpu_count()} cores, 1 thread, Python {platform.python_version()}")
    print(", ".join(f"{name} {version(name)}" for name in PACKAGES))
    print(f"\n{'work':<52}{'clock s':>9}{'cpu s':>8}{'goal':>8}{'':>8}{'peer':>9}{'ratio':>8}")
    steps, measured = 500 if quick else 5000, {}
    for table in (lambda: output_rows(steps), lambda: deep_rows(50 if quick else 500), projection_rows):
        for name, (clock, seconds), goal, peer in table():
            measured[name] = seconds
            met = "" if goal is None else "met" if seconds <= goal else "MISSED"
            goal_text = "" if goal is None else f"{goal:.1f}"
            peer_text = "" if peer is None else f"{peer:.1f}"
            ratio = "" if peer is None else f"{peer / seconds:.1f} x"
            print(f"{name:<52}{clock:>9.2f}{seconds:>8.2f}{goal_text:>8}{met:>8}{peer_text:>9}{ratio:>8}", flush=True)
    print(f"\nagainst fresh forwards of both encoders at every step, batches of 16, 8 x {steps:,} steps")
    print(f"{'work':<52}{'ours s':>9}{'loop steps':>12}{'scaled s':>12}{'ratio':>11}{'goal':>8}")
    for name, ours, count, theirs in fresh_rows(steps, measured):
        ratio = theirs / ours
        judged = f"d = {DIM}" in name  # the goal is for encoders of that width
        verdict = ("met" if ratio >= FRESH_GOAL else "MISSED") if judged else ""
        print(f"{name:<52}{ours:>9.2f}{count:>12}{theirs:>12,.0f}{ratio:>9,.0f} x{verdict:>8}", flush=True)
    print(f"the loop's seconds are those of the measured steps, scaled up; goal: {FRESH_GOAL} times at d = {DIM}")


if __name__ == "__main__":
    main()
