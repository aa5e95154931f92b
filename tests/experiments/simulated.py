"""Made experiments whose truth is known: a claim, what it is compared with, and a control."""

from collections import Counter

import numpy as np

from engine.experiments import Cell, Check, Rights, accuracy_side, judge

TASKS, IMAGES, SEEDS = 4, 1000, 5
SPREAD = 0.4  # points by which a training moves with its seed
COLUMNS = ("method", "rival", "control")
CHECKS = (
    Check(text="It is better.", measure="m", left="method", relation="above", right="rival"),
    Check(
        text="The control does as well.",
        measure="m",
        left="control",
        relation="above_or_near",
        right="method",
        control=True,
    ),
)


def made(gain: float, generator: np.random.Generator) -> dict[str, Rights]:
    """Make which images three methods classify rightly; the method gains points over both others.

    An image has a difficulty that all share, a training a level of its own and each image a chance beside, so that two
    methods agree on most images, as real ones do.
    """
    hard = {task: generator.normal(size=IMAGES) for task in range(TASKS)}
    found = {}
    for name in COLUMNS:
        level = 80.0 + (gain if name == "method" else 0.0)
        seeds = generator.normal(0, SPREAD, size=SEEDS)
        matrices = {}
        for task, difficulty in hard.items():
            own = 0.9 * difficulty + np.sqrt(1 - 0.81) * generator.normal(size=(SEEDS, IMAGES))
            threshold = np.array([_threshold(level + seed) for seed in seeds])
            matrices[str(task)] = own < threshold[:, None]
        found[name] = Rights.of(matrices, {}, "made")
    return found


def outcomes(repetitions: int, gain: float, generator: np.random.Generator) -> Counter[str]:
    """Judge made experiments; counts "seen" of the clause, its five outcomes and "holds" of the verdict."""
    found: Counter[str] = Counter()
    for _ in range(repetitions):
        table, sides = {}, {}
        for name, rights in made(gain, generator).items():
            matrices = rights.by_task()[0].values()
            values = 100 * np.mean([matrix.mean(axis=1) for matrix in matrices], axis=0)
            table[name] = {"m": Cell(values=tuple(values.tolist()), mean=float(values.mean()))}
            sides[name] = {"m": accuracy_side(rights, "average.merged.in", "merged", float(values.mean()))}
        findings, verdict, _ = judge(CHECKS, table, sides)
        found[findings[0].outcome] += 1
        found["holds"] += verdict == "holds here"
        found["as well"] += verdict == "seen, and a control does as well"
    return found


def _threshold(percent: float) -> float:
    """Return the normal quantile of a percentage."""
    from scipy.stats import norm

    return float(norm.ppf(percent / 100))
