"""The work of a view, in units whose rates are known: what its time is foreseen from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...recipe import Recipe

SCORING = 1.0e-7  # seconds to compare one feature's entry with heads and experts


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run that the work of its views depends on."""

    experts: int
    dim: int  # of features
    blocks: int  # of the encoder; 0 where it has none that can be followed
    images: Mapping[str, int]  # evaluated images by task
    in_domain: tuple[str, ...] = field(default=())

    def looked_at(self, most: int, task: str = "") -> int:
        """Return how many images a view takes: at most so many a task, of one task or of all in-domain ones."""
        tasks = (task,) if task else self.in_domain
        return sum(min(most, self.images.get(name, 0)) for name in tasks)

    def scored(self, recipe: Recipe) -> float:
        """Return the seconds in which every state's features of all in-domain images are compared once."""
        states = 3 + len(recipe.calibrators)
        return 0.1 + SCORING * self.dim * states * sum(self.images.get(name, 0) for name in self.in_domain)


@dataclass(frozen=True)
class Work:
    """The work of a view, beside that of the run which it is a view on."""

    passes: float = 0.0  # of one image through the encoder
    models: float = 0.0  # read, and worked through value by value
    merges: float = 0.0  # by the recipe's method
    decomposed: float = 0.0  # models whose weight matrices are decomposed
    seconds: float = 0.0  # of work that depends on none of these
    runs: float = 0.0  # whole runs' merging, encoding of the merged model, and calibrating
    recipe: Recipe | None = None  # of these runs, where it is not that of the request
