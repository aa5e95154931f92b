"""Numbers for people. They are rounded with halves away from zero, as browsers do in tables and charts.

Python's own formatting rounds halves to even, so that a mean of 95.25 would read 95.2 in a sentence and 95.3 in the
table beside it.
"""

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

SAYS_LITTLE = 3.0  # seconds after which the speed of work says how long it takes
KNOWN = 0.05  # share that has to be done for that


def rounded(value: float, digits: int = 1, *, signed: bool = False, grouped: bool = False) -> str:
    """Write a finite number with so many digits after the point; ``signed`` puts a plus before what is not negative.

    ``grouped`` sets commas between thousands. What rounds to zero has no minus.
    """
    near = Decimal(float(value)).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)
    return f"{near if near else abs(near):{'+' if signed else ''}{',' if grouped else ''}f}"


def bytes_text(count: float) -> str:
    """Return a number of bytes in GB or MB (powers of ten), such as ``3.0 GB``, ``512 MB`` or ``0.4 MB``."""
    if count >= 1e9:
        return f"{rounded(count / 1e9)} GB"
    return f"{rounded(count / 1e6, 0 if count >= 1e7 else 1)} MB"


def spelled(grades: Sequence[float]) -> tuple[str, ...]:
    """Return grades as the names of classes, all with as many decimals."""
    decimals = max(len(text.partition(".")[2]) for text in (f"{grade:.10f}".rstrip("0") for grade in grades))
    return tuple(f"{grade:.{max(decimals, 1)}f}" for grade in grades)


def seconds_left(fraction: float, elapsed: float) -> float | None:
    """Return how long work still takes, as fast as it went so far; None while that says little.

    Args:
        fraction: of the work that is done.
        elapsed: seconds that it took.
    """
    if elapsed < SAYS_LITTLE or not KNOWN <= fraction < 1:
        return None
    return elapsed * (1 - fraction) / fraction


def about(seconds: float) -> str:
    """Return a foreseen time in words, as exactly as it can be foreseen: 'about 5 s', 'about 40 s', 'about 3 min'."""
    if seconds < 60:
        return f"about {max(round(seconds), 1) if seconds < 10 else 5 * round(seconds / 5)} s"
    return f"about {round(seconds / 60)} min" if seconds < 3600 else f"about {seconds / 3600:.1f} h"
