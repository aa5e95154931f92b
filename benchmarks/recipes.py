"""Costs of the recipes of fine-tuning, relative to the standard one.

    python benchmarks/recipes.py [--zoo ZOO] [--batch-size 64] [--rounds 7]

Every round takes one step by each recipe, one after the other, on the same batch, on one thread. A recipe's cost is the
median over rounds of its processor seconds divided by the standard recipe's in the same round: shared machines inflate
the clock, and both alike. What comes before the first step (OSRM looks at the other tasks' images) is not in it; random
images stand in for all images, since no step's work depends on what they show.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from engine.catalog import FINE_TUNING
from engine.manifest import STANDARD
from engine.training.setting import Setting, strategy_of
from engine.zoo.encoders.backbone import architecture, load_encoder
from engine.zoo.encoders.training import Schedule, Trainer
from engine.zoo.folder import Zoo


def trainers(zoo: Zoo, size: int, batch: int) -> tuple[dict[str, Trainer], Tensor, Tensor]:
    """Return a trainer of every recipe for one task, and a batch of images and labels.

    Args:
        zoo: gives base and heads.
        size: of the images.
        batch: images in a step.
    """
    task = next(task for task in zoo.manifest.tasks if task.role == "in")
    head = zoo.heads([task.name])[0][task.name]
    draws = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, size, size, generator=draws)
    labels = torch.randint(0, len(head.weight), (batch,), generator=draws)
    others = {"other": torch.randn(16, 3, size, size, generator=draws)}
    made = {}
    for name, row in FINE_TUNING.items():
        if row.joint:
            continue  # its step is a standard one
        encoder = load_encoder(architecture(zoo.folder, zoo.manifest), zoo.weights("base"))
        strategy = strategy_of(name, {}, encoder, Setting(0, len(head.weight), lambda count: others))
        made[name] = Trainer(encoder, [head.weight], head.scale, Schedule(1000, 1e-6, 0), strategy)
    return made, images, labels


def measure(zoo: str, batch: int, rounds: int) -> dict[str, list[float]]:
    """Return for every recipe its processor seconds by round; one round before them is not counted."""
    opened = Zoo.open(zoo)
    made, images, labels = trainers(opened, opened.preprocess().size, batch)
    found: dict[str, list[float]] = {name: [] for name in made}
    for number in range(rounds + 1):
        for name, trainer in made.items():
            began = time.process_time()
            trainer.advance(images, [labels])
            if number:
                found[name].append(time.process_time() - began)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", default="mini8")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(asked.zoo, asked.batch_size, asked.rounds)
    usual = found[STANDARD]
    print(f"{asked.zoo}, batches of {asked.batch_size}, {asked.rounds} rounds, one thread, torch {torch.__version__}")
    print(f"standard: {1000 * statistics.median(usual):.0f} ms of processor time a step")
    for name, seconds in found.items():
        ratios = sorted(own / one for own, one in zip(seconds, usual, strict=True))
        written = FINE_TUNING[name].cost
        print(f"{name:16} {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}); catalogue {written:g}")


if __name__ == "__main__":
    main()
