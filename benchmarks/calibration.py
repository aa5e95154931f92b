"""Times of calibrators and projections against their goals.

Run: python benchmarks/calibration.py [--quick]. Everything runs on one thread. ``peer`` is a plain loop: one task
after another, automatic differentiation, one torch.optim.Adam a task, on the same cached features; its time is that of
a part of the steps, scaled up. Ratios and goals are judged by processor seconds of the one thread, because shared
machines inflate the clock.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", NUMBA_NUM_THREADS="1")

import argparse
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.analysis.projection import joint_projection
from engine.calibration import IntervMerge, ProbSurgery, Surgery, SurgeryV2
from engine.catalog.calibrators import IntervMergeParams, ProbSurgeryParams, SurgeryParams, SurgeryV2Params

TASKS, IMAGES, DIM = 8, 500, 512
PEER_STEPS = 200
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


def deep_rows(steps: int) -> list[Line]:
    """Calibrators inside a tiny vision transformer (width 192, 17 tokens, 4 blocks)."""
    import open_clip.transformer as vit

    torch.manual_seed(0)
    encoders = [vit.VisionTransformer(32, 8, 192, 4, 3, 4.0, output_dim=DIM).eval() for _ in range(2)]
    generator = torch.Generator().manual_seed(0)
    images = {f"task{i}": torch.randn(IMAGES, 3, 32, 32, generator=generator) for i in range(TASKS)}
    rows = []
    for name, kind, config, goal in [
        ("IntervMerge rank 1, all blocks", IntervMerge, IntervMergeParams(rank=1, steps=steps), 120.0),
        ("SurgeryV2 r=16", SurgeryV2, SurgeryV2Params(rank=16, steps=steps), None),
    ]:
        calibrator = kind()
        teacher = {task: calibrator.teach(encoders[1], x, config) for task, x in images.items()}
        seconds = timed(lambda c=calibrator, p=config, t=teacher: c.fit_deep(encoders[0], images, t, p, 0))
        rows.append((f"{name}, 8 x {steps:,} steps", seconds, goal and goal * steps / 500, None))
    return rows


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
    print(f"\n{'work':<44}{'clock s':>9}{'cpu s':>8}{'goal':>8}{'':>8}{'peer':>9}{'ratio':>8}")
    tables = [lambda: output_rows(500 if quick else 5000), lambda: deep_rows(50 if quick else 500)]
    for table in [*tables, projection_rows]:
        for name, (clock, seconds), goal, peer in table():
            met = "" if goal is None else "met" if seconds <= goal else "MISSED"
            goal_text = "" if goal is None else f"{goal:.1f}"
            peer_text = "" if peer is None else f"{peer:.1f}"
            ratio = "" if peer is None else f"{peer / seconds:.1f} x"
            print(f"{name:<44}{clock:>9.2f}{seconds:>8.2f}{goal_text:>8}{met:>8}{peer_text:>9}{ratio:>8}", flush=True)


if __name__ == "__main__":
    main()
