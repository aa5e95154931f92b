"""Results of an experiment that nobody ran: correctness is drawn."""

import numpy as np

from engine.experiments import (
    Cell,
    Check,
    Experiment,
    ExperimentResult,
    Measure,
    Point,
    PointResult,
    Rights,
    Tuned,
    judge,
)
from engine.experiments.rights import accuracy_side

SPEC = Experiment(
    name="made",
    title="Made",
    paper="Nobody, 2026",
    part="Table 0",
    claim="Left is better.",
    base={},
    points=(
        Point(name="left", title="Left"),
        Point(name="right", title="Right", tune={"merge.params.scaling": (1, 2)}),
    ),
    measures=(
        Measure(name="accuracy", title="Accuracy", path="average.{state}.in"),
        Measure(name="barrier", title="Barrier", view="connection", path="barrier"),
    ),
    checks=(
        Check(text="Left is better.", measure="accuracy", left="left", relation="above", right="right"),
        Check(text="Left is lower.", measure="barrier", left="left", relation="below", right="right", margin=0.01),
    ),
)


def result(number, shares, *, images=400, zoo="made"):
    """Return what a set of experts gave: left and right are right on a share of the images, drawn by its number."""
    draw, points = np.random.default_rng(number), []
    for name, share in shares.items():
        right = draw.random((1, images)) < share
        values = tuple(100.0 * right.mean(axis=1))
        barrier = 0.2 * share + 0.01 * number
        points.append(
            PointResult(
                name=name,
                title=name,
                state="merged",
                control=False,
                seeds=(0,),
                cells={
                    "accuracy": Cell(values=values, mean=float(np.mean(values))),
                    "barrier": Cell(values=(barrier,), mean=barrier),
                },
                rights=Rights.of({"digits": right}, {}, "held out"),
                tuned=(Tuned(place="merge.params.scaling", values=(1, 2), chosen=number),) if name == "right" else (),
            )
        )
    table = {point.name: point.cells for point in points}
    sides = {
        p.name: {"accuracy": accuracy_side(p.rights, "average.merged.in", "merged", p.cells["accuracy"].mean)}
        for p in points
    }
    findings, verdict, reason = judge(SPEC.checks, table, sides)
    return ExperimentResult(
        name="made",
        form=SPEC.digest(),
        measured=SPEC.measured(),
        measures=SPEC.taken(),
        quick=False,
        zoo=zoo,
        zoo_digest=f"{number:064d}",
        protocol="held_out",
        split_seed=0,
        images=(images, images),
        points=tuple(points),
        findings=findings,
        verdict=verdict,
        reason=reason,
        seconds=2.0,
    )
