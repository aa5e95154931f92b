"""The errors of the rule that judges claims: a thousand made experiments without a difference, and with two points.

python benchmarks/verdicts.py [--repetitions 1000]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.experiments.simulated import IMAGES, SEEDS, TASKS, outcomes


def main() -> None:
    """Print the share of every outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000)
    asked = parser.parse_args()
    print(f"{asked.repetitions} experiments each, {TASKS} tasks of {IMAGES} images, {SEEDS} training seeds")
    for gain in (0.0, 0.5, 1.0, 2.0):
        started = time.perf_counter()
        found = outcomes(asked.repetitions, gain, np.random.default_rng(int(10 * gain)))
        shares = ", ".join(f"{name} {100 * count / asked.repetitions:.1f} %" for name, count in sorted(found.items()))
        print(f"{gain:g} points: {shares} ({time.perf_counter() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
