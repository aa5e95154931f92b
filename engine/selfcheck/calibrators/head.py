"""References of heads and entropies."""

from __future__ import annotations

from ...analysis.accuracy import entropy
from ..measure import Check, Found
from ..reference import CalibratorReference
from .stored import scores


def head_and_entropy(reference: CalibratorReference, name: str, precision: str) -> Found:
    """Return the logits of a head that normalises its input, and the entropies of its predictions."""
    numbers = reference.numbers(name, precision)
    logits = scores(numbers["feature"], numbers)
    got = {"logits": logits, "entropy_per_sample": entropy(logits.numpy())}
    return Found(got, {key: numbers[key] for key in got})


CHECKS: dict[str, Check] = {"head_and_entropy": head_and_entropy}
