"""Evolutionary search over the coefficients and densities of task vectors."""

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
from .ties import agreeing_above, elected, limits_by_share

BATCH = 64
LEVELS = 20  # densities that are searched are multiples of one over this
OUTSIDE = "outside"  # the group of layers that belong to no block


def evolutionary(base: Weights, task_vectors: TaskVectors, params: EvolutionaryParams, context: Context) -> Static:
    """Search coefficients by CMA-ES, scoring every candidate on labelled validation images, and keep the best.

    The start is the first candidate, so that the result is never worse on these images than where it began. Every
    evaluation reads all experts once and encodes all validation images.

    Source: Akiba et al., Nature Machine Intelligence 2025, arXiv:2403.13187, parameter space; the strategy is
        Hansen's CMA-ES (arXiv:1604.00772) from the library cma, with populations of 4 + ⌊3 ln n⌋.
    Departure: weights and, with ``search_densities``, densities of TIES are searched, where the paper evolves those of
        TIES with DARE: what is dropped here are the smallest entries, never random ones. A density is one of twentieths
        and of a whole expert, since thresholds rank all its entries. The paper's second search, which orders layers,
        needs models whose layers may follow each other in any order.
    """
    groups = {name: _group(name) if params.granularity == "block" else "" for name in task_vectors.names}
    space = _Space(
        tuple(dict.fromkeys(groups.values())), tuple(task_vectors.experts), densities=params.search_densities
    )
    judge, vectors = _Judge(base, groups, params, context), _vectors(task_vectors, params, context)

    def score(candidate: np.ndarray) -> float:
        return judge.score(space.coefficients(candidate), vectors(space.shares(candidate)))

    found = search(score, space.size, params, context.seed, densities=space.own)
    best, shares = space.coefficients(found.best), space.shares(found.best)
    chosen = vectors(shares)
    details = {
        "coefficients": {
            expert: {group: float(rows[k]) for group, rows in best.items()}
            if len(best) > 1
            else float(best[space.groups[0]][k])
            for k, expert in enumerate(space.experts)
        },
        **({"densities": dict(zip(space.experts, shares, strict=True))} if shares else {}),
        "objective": params.objective,
        "evaluations": len(found.scores),
        "validation_images": judge.count,
        "score": [round(score, 6) if np.isfinite(score) else None for score in found.scores],
    }
    return add_to_base(
        base,
        task_vectors,
        lambda name: combine(best[groups[name]], chosen.stack(name)),
        MergeInfo(details=details),
    )


@dataclass(frozen=True)
class _Space:
    """The coordinates of a candidate: a coefficient for every group and expert, then a density an expert.

    Coordinates are in the order of the experts' names, so that chance does not depend on the order of experts.
    """

    groups: tuple[str, ...]
    experts: tuple[str, ...]
    densities: bool

    @property
    def size(self) -> int:
        """Return the number of coefficients."""
        return len(self.groups) * len(self.experts)

    @property
    def own(self) -> int:
        """Return the number of densities."""
        return len(self.experts) if self.densities else 0

    def _places(self) -> np.ndarray:
        return np.argsort(sorted(range(len(self.experts)), key=self.experts.__getitem__))

    def coefficients(self, candidate: np.ndarray) -> dict[str, Tensor]:
        """Return the coefficients (K,) of every group, in the experts' order."""
        table = candidate[: self.size].reshape(len(self.groups), len(self.experts))[:, self._places()]
        return dict(zip(self.groups, torch.from_numpy(table), strict=True))

    def shares(self, candidate: np.ndarray) -> tuple[float, ...]:
        """Return the densities, in the experts' order: the nearest that thresholds are known of; () for none."""
        own = candidate[self.size : self.size + self.own]
        levels = np.clip(np.rint(own * LEVELS), 1, LEVELS) / LEVELS
        return tuple(levels[self._places()].tolist()) if self.own else ()


def _vectors(
    task_vectors: TaskVectors, params: EvolutionaryParams, context: Context
) -> Callable[[tuple[float, ...]], TaskVectors]:
    """Return a function from densities (K) to what is added up; the same for all where none are searched."""
    if not params.search_densities:
        fixed = elected(task_vectors, params.density, context) if params.on == "ties" else task_vectors
        return lambda shares: fixed
    limits = limits_by_share(task_vectors, [(level + 1) / LEVELS for level in range(LEVELS)], context)

    def trimmed(shares: tuple[float, ...]) -> TaskVectors:
        mine = [limits[round(share * LEVELS) - 1, k].item() for k, share in enumerate(shares)]
        return agreeing_above(task_vectors, lambda name: mine)

    return trimmed


@dataclass
class Search:
    """The best candidate so far and the score of every candidate (higher is better)."""

    best: np.ndarray
    scores: list[float] = field(default_factory=list)


def search(
    score: Callable[[np.ndarray], float], size: int, params: EvolutionaryParams, seed: int, *, densities: int = 0
) -> Search:
    """Maximise a score of candidates in [0, largest]^size, and [0, 1] for densities, with a budget of evaluations.

    Args:
        score: of a candidate; NaN counts as the worst.
        size: how many coefficients; CMA-ES needs two coordinates, so that one is searched with an idle second.
        params: start, step and budget.
        seed: of the candidates.
        densities: how many coordinates after them are densities.
    """
    coefficients = size if densities else max(size, 2)
    start = np.full(coefficients + densities, min(params.initial, params.largest), dtype=np.float64)
    start[coefficients:] = params.density
    most = np.full(len(start), params.largest)
    most[coefficients:] = 1.0
    found = Search(start)

    def judged(candidate: np.ndarray) -> float:
        value = score(candidate)
        if not found.scores or value > max(found.scores):
            found.best = candidate.copy()
        found.scores.append(value if np.isfinite(value) else -np.inf)
        return -found.scores[-1]

    judged(start)
    strategy = _strategy(start, most, params, seed)
    while len(found.scores) < params.evaluations and not strategy.stop():
        candidates = strategy.ask()
        left = params.evaluations - len(found.scores)
        values = [judged(np.asarray(candidate)) for candidate in candidates[:left]]
        if len(values) == len(candidates):
            strategy.tell(candidates, values)
    return found


def _strategy(start: np.ndarray, most: np.ndarray, params: EvolutionaryParams, seed: int):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it misses a plotting library that is not needed
        import cma
    random = np.random.default_rng(seed)
    options = {
        "bounds": [0.0, most.tolist()],
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
        groups: dict[str, str],
        params: EvolutionaryParams,
        context: Context,
    ) -> None:
        self.base, self.groups, self.params, self.context = base, groups, params, context
        self.tasks = sorted(set(context.tasks))
        self.images = {task: next(context.batches(task, "validation", params.examples)) for task in self.tasks}
        self.count = sum(len(images) for images, _ in self.images.values())
        self.done = 0

    @torch.no_grad()
    def score(self, rows: dict[str, Tensor], task_vectors: TaskVectors) -> float:
        """Return the mean over the tasks of accuracy (%) or of negative cross-entropy."""
        device = self.images[self.tasks[0]][0].device
        weights = {}
        for name in self.base.names:
            tensor = self.base.tensor(name)
            if name in self.groups:
                vector = combine(rows[self.groups[name]], task_vectors.stack(name))
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
