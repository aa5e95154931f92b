"""MergeLens: merge fine-tuned vision experts, see what merging does to their representations, and repair it."""

__version__ = "0.1.0"
