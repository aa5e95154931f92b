"""MergeLens: merge fine-tuned vision experts, see what merging does to their representations, and repair it."""

import os

# Waiting threads sleep instead of spinning: two contended threads made one loop 60 times slower. Read when numeric
# libraries are first loaded, so it is set before any of them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")

__version__ = "0.1.0"
