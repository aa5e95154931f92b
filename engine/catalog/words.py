"""Rows of the catalog in words: families, needs, cost, and what is made, for forms, tables and documents."""

from __future__ import annotations

from collections.abc import Mapping

from .row import Category, FineTuningRow, MergeRow, Need, Row, TransformRow

CATEGORIES: Mapping[Category, str] = {
    "basic": "Basic",
    "weighted": "Weighted",
    "sparse": "Sparse subspace",
    "low_rank": "Low-rank subspace",
    "optimisation": "Optimisation",
    "routing": "Routing",
    "transform": "Transform, before Task Arithmetic",
}
BEFORE_MERGING: Mapping[Category, str] = {
    "fine_tuning": "Fine-tuning",
    "architecture": "Architecture transformation",
    "alignment": "Alignment",
}
NEEDS: Mapping[Need, str] = {
    "unlabelled": "unlabelled images",
    "validation": "labelled validation images",
    "heads": "heads",
    "same_task_experts": "several experts of one task",
    "other_tasks": "images of other tasks",
    "experts": "an expert of every task",
    "teacher": "a teacher with the same classes",
    "factors": "experts trained with adapters",
}
YIELDS = {"static": "one model", "per_task": "weights by task", "per_sample": "weights by image"}
LEARNS = {
    "": "",
    "task_coefficients": "λ by task",
    "layer_coefficients": "λ by layer",
    "mask": "a mask",
    "router": "a router",
}
AT_INFERENCE = {
    "static": "nothing: one model",
    "per_task": "the task of every image, and its masks",
    "per_sample": "a router that looks at every image",
}
CHOICES = {  # that are names, and read otherwise than they are written in recipes
    "noreft": "NoReFT",
    "loreft": "LoReFT",
    "direft": "DiReFT",
    "consreft": "ConsReFT",
    "lobireft": "LobiReFT",
    "nodireft": "NodiReFT",
    "dfa": "DFA",
    "pda": "PDA",
    "l1": "L1",
    "l2": "L2",
    "mse": "MSE",
    "smooth_l1": "smooth L1",
    "svd": "SVD",
    "ties": "TIES",
    "ties_mean": "TIES, mean",
    "ties_sum": "TIES, sum",
}


def choice_title(choice: str) -> str:
    """Return a parameter's choice for people; recipes and the command line keep its name."""
    return CHOICES.get(choice, choice.replace("_", " "))


def needs_of(row: Row) -> str:
    """Return what a method needs beside the weights."""
    trained = ["labelled training images"] if isinstance(row, FineTuningRow) else []
    return ", ".join(trained + [NEEDS[need] for need in sorted(row.needs)]) or "weights alone"


def makes(row: MergeRow | TransformRow) -> str:
    """Return what a method makes; of a transform, what the plain merge behind it makes."""
    return YIELDS[row.yields if isinstance(row, MergeRow) else "static"]


def learns(row: MergeRow | TransformRow) -> str:
    """Return what a method learns; '' for nothing."""
    return LEARNS[row.learns if isinstance(row, MergeRow) else ""]


def at_inference(row: MergeRow | TransformRow) -> str:
    """Return what must be known or stored to use what a method makes."""
    return AT_INFERENCE[row.yields if isinstance(row, MergeRow) else "static"]


def cost_of(row: MergeRow | TransformRow) -> str:
    """Return what carrying a method out takes."""
    if row.cost.images:
        many = isinstance(row, MergeRow) and row.learns
        return "trains: many passes through the encoder" if many else "a few hundred images through every expert"
    if row.cost.decomposes:
        return "singular value decompositions of every matrix, kept for each expert"
    if row.cost.holds_models:
        return "solves for every matrix"
    return "reads the weights once or twice"
