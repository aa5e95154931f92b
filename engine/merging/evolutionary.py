"""Evolutionary search over the coefficients of task vectors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..catalog.learned import EvolutionaryParams
from ..layouts import block_of
from ..types import Context, MergeInfo, Static, TaskVectors, Weights
from .adamerging import combine, predict
from .assemble import add_to_base
from .ties import elected

BATCH = 64
OUTSIDE = "outside"  # the group of layers that belong to no block


def evolutionary(base: Weights, task_vectors: TaskVectors, params: EvolutionaryParams, context: Context) -> Static:
    """Search coefficients by CMA-ES, scoring every candidate on labelled validation images, and keep the best.

    The start is the first candidate, so that the result is never worse on these images than where it began. Every
    evaluation reads all experts once and encodes all validation images.

    Source: Akiba et al., Nature Machine Intelligence 2025, arXiv:2403.13187, parameter space; the strategy is
        Hansen's CMA-ES (arXiv:1604.00772) from the library cma, with populations of 4 + ⌊3 ln n⌋.
    Departure: coefficients of task vectors (trimmed and elected as in TIES, or whole) are searched, where the paper
        evolves weights and densities of TIES with DARE, and a second search orders layers.
    """
    if params.on == "ties":
        task_vectors = elected(task_vectors, params.density, context)
    groups = {name: _group(name) if params.granularity == "block" else "" for name in task_vectors.names}
    names = list(dict.fromkeys(groups.values()))
    # Coordinates are in the order of the experts' names, so that chance does not depend on the order of experts.
    places = torch.tensor(sorted(range(len(task_vectors.experts)), key=task_vectors.experts.__getitem__)).argsort()

    def rows(candidate: np.ndarray) -> dict[str, Tensor]:
        """Return the coefficients (K,) of every group, in the experts' order."""
        table = torch.from_numpy(candidate[: len(names) * len(places)]).view(len(names), len(places))[:, places]
        return dict(zip(names, table, strict=True))

    judge = _Judge(base, task_vectors, groups, params, context)
    found = search(lambda candidate: judge.score(rows(candidate)), len(names) * len(places), params, context.seed)
    best = rows(found.best)
    details = {
        "coefficients": {
            expert: {group: float(best[group][k]) for group in names} if len(names) > 1 else float(best[names[0]][k])
            for k, expert in enumerate(task_vectors.experts)
        },
        "objective": params.objective,
        "evaluations": len(found.scores),
        "validation_images": judge.count,
        "score": [round(score, 6) if np.isfinite(score) else None for score in found.scores],
    }
    return add_to_base(
        base,
        task_vectors,
        lambda name: combine(best[groups[name]], task_vectors.stack(name)),
        MergeInfo(details=details),
    )


@dataclass
class Search:
    """The best candidate so far and the score of every candidate (higher is better)."""

    best: np.ndarray
    scores: list[float] = field(default_factory=list)


def search(score: Callable[[np.ndarray], float], size: int, params: EvolutionaryParams, seed: int) -> Search:
    """Maximise a score of candidates in [0, largest]^size with a budget of evaluations.

    Args:
        score: of a candidate; NaN counts as the worst.
        size: how many coordinates; CMA-ES needs two, so that one is searched with an idle second.
        params: start, step and budget.
        seed: of the candidates.
    """
    start = np.full(max(size, 2), min(params.initial, params.largest), dtype=np.float64)
    found = Search(start)

    def judged(candidate: np.ndarray) -> float:
        value = score(candidate)
        if not found.scores or value > max(found.scores):
            found.best = candidate.copy()
        found.scores.append(value if np.isfinite(value) else -np.inf)
        return -found.scores[-1]

    judged(start)
    strategy = _strategy(start, params, seed)
    while len(found.scores) < params.evaluations and not strategy.stop():
        candidates = strategy.ask()
        left = params.evaluations - len(found.scores)
        values = [judged(np.asarray(candidate)) for candidate in candidates[:left]]
        if len(values) == len(candidates):
            strategy.tell(candidates, values)
    return found


def _strategy(start: np.ndarray, params: EvolutionaryParams, seed: int):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it misses a plotting library that is not needed
        import cma
    random = np.random.default_rng(seed)
    options = {
        "bounds": [0.0, params.largest],
        "seed": np.nan,  # the generator below is used instead of NumPy's global one
        "randn": lambda *shape: random.standard_normal(shape),
        "maxfevals": params.evaluations,
        # Accuracy is flat in places, and that is no reason to stop before the budget is used.
        **dict.fromkeys(("tolfun", "tolfunhist"), 0.0),
        **dict.fromkeys(("tolflatfitness", "tolstagnation"), params.evaluations),
        "verbose": -9,
    }
    return cma.CMAEvolutionStrategy(start, params.sigma, options)


def _group(name: str) -> str:
    """Return the block a layer belongs to, by its number."""
    block = block_of(name)
    return OUTSIDE if block is None else str(block)


class _Judge:
    """Scores merged models on the same labelled validation images, task by task."""

    def __init__(
        self,
        base: Weights,
        task_vectors: TaskVectors,
        groups: dict[str, str],
        params: EvolutionaryParams,
        context: Context,
    ) -> None:
        self.base, self.task_vectors, self.groups, self.params, self.context = (
            base,
            task_vectors,
            groups,
            params,
            context,
        )
        self.tasks = sorted(set(context.tasks))
        self.images = {task: next(context.batches(task, "validation", params.examples)) for task in self.tasks}
        self.count = sum(len(images) for images, _ in self.images.values())
        self.done = 0

    @torch.no_grad()
    def score(self, rows: dict[str, Tensor]) -> float:
        """Return the mean over the tasks of accuracy (%) or of negative cross-entropy."""
        device = self.images[self.tasks[0]][0].device
        weights = {}
        for name in self.base.names:
            tensor = self.base.tensor(name)
            if name in self.groups:
                vector = combine(rows[self.groups[name]], self.task_vectors.stack(name))
                tensor = vector.add_(tensor.to(vector.dtype))
            weights[name] = tensor.to(device)
        total = sum(self._task(task, weights) for task in self.tasks)
        self.done += 1
        return total / len(self.tasks)

    def _task(self, task: str, weights: dict[str, Tensor]) -> float:
        images, labels = self.images[task]
        total = 0.0
        for some, wanted in self._chunks(images, labels):
            logits = predict(self.context.forward(weights, some), self.context.head(task))
            if self.params.objective == "accuracy":
                total += 100.0 * (logits.argmax(dim=1) == wanted).sum().item()
            else:
                total -= functional.cross_entropy(logits, wanted, reduction="sum").item()
        return total / len(images)

    def _chunks(self, images: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for pair in zip(images.split(BATCH), labels.split(BATCH), strict=True):
            share = min(self.done / self.params.evaluations, 1.0)
            self.context.progress(share, f"Evaluating candidate {self.done + 1} of {self.params.evaluations}")
            yield pair
