"""The rows of the catalog: one for every transform, merge method and calibrator, with all that others need to know."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Literal

from pydantic import ConfigDict
from pydantic.fields import FieldInfo

from ..recipe import Sparse
from .docstrings import departure_of
from .survey_entry import SurveyEntry

Category = Literal[
    "basic",
    "weighted",
    "sparse",
    "low_rank",
    "optimisation",
    "routing",
    "transform",
    "output",
    "deep",
    "fine_tuning",
    "architecture",
    "alignment",
]
Need = Literal["unlabelled", "validation", "heads", "same_task_experts", "other_tasks", "experts", "teacher", "factors"]
Amount = Callable[[Any], float]  # of a method's parameters
BACKWARD = 3  # forward passes that a training step on an image costs
# json_schema_extra of a parameter that repeats a fault of published code or tables; forms leave it out.
PARITY = {"advanced": "parity"}


class Params(Sparse):
    """Base of every method's parameters: immutable, validated, unknown names refused, nothing but finite numbers."""

    model_config = ConfigDict(allow_inf_nan=False)

    def experts_named(self) -> tuple[str, ...]:
        """Return the experts of which a parameter speaks by name."""
        return ()


def is_parity(field_: FieldInfo) -> bool:
    """Tell whether a parameter only repeats a fault of published code or tables."""
    return (field_.json_schema_extra or {}).get("advanced") == PARITY["advanced"]


class OnlyWith:
    """Marker of a parameter that has an effect only where others have one of these values."""

    def __init__(self, **values: tuple[Any, ...]) -> None:
        self.values = values


class NoParams(Params):
    """A method without parameters."""


@dataclass(frozen=True)
class Preset:
    """Named parameter values from a publication."""

    name: str
    title: str
    params: dict[str, Any]
    source: str = ""


@dataclass(frozen=True)
class Row:
    """One method: widgets, validation, documentation, command line and contract tests are made from this.

    Contract tests run a method on tiny models with ``quick``, and with ``quick`` and each of ``presets`` and
    ``variants``.
    """

    name: str
    title: str
    category: Category
    params: type[Params]
    function: str  # path relative to the package, e.g. ".merging.ties:ties"
    summary: str  # one plain sentence
    equation: str  # LaTeX
    source: str  # authors, venue, arXiv number
    url: str = ""
    needs: frozenset[Need] = frozenset()
    presets: tuple[Preset, ...] = field(default=())
    quick: Mapping[str, Any] = field(default_factory=dict)  # parameters with which all of it takes an instant
    variants: tuple[Mapping[str, Any], ...] = ()  # more parameters to try it with
    survey: SurveyEntry | None = None  # of the survey's method that this row stands for
    survey_with: str = ""  # or the row that stands more closely for the same one

    def load(self) -> Callable[..., Any]:
        """Import the function (or class) that does the work. Imports torch."""
        module, _, attribute = self.function.partition(":")
        return getattr(import_module(module, package=__name__.split(".", maxsplit=1)[0]), attribute)

    def in_effect(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call's parameters that have an effect beside its others; those not given have their defaults."""
        fields = self.params.model_fields
        held = {name: field_.default for name, field_ in fields.items()} | dict(params)

        def idle(name: str) -> bool:
            marks = (mark for mark in fields[name].metadata if isinstance(mark, OnlyWith)) if name in fields else ()
            return any(held[other] not in values for mark in marks for other, values in mark.values.items())

        return {name: value for name, value in params.items() if not idle(name)}

    @property
    def departure(self) -> str:
        """Return the difference between paper and code, as the function's docstring states it; '' if there is none."""
        return departure_of(self.function)


@dataclass(frozen=True)
class Cost:
    """The work of a merge method or transform, from which estimates before a run are made.

    ``images`` and ``merges`` are of methods that look at images: forward passes for each task, and how often the whole
    model is put together on the way. ``products`` is of methods that iterate on matrices of m × n, n ≤ m: how many
    products of n × n × m each expert takes.
    """

    reads: int = 1  # times that every expert is read
    sweeps: int = 6  # times that every value of every expert is gone over
    decomposes: bool = False  # every matrix of every expert, and the merged one, into singular vectors
    holds_models: bool = False  # all experts at once in memory
    images: Amount | None = None
    merges: Amount | None = None
    products: Amount | None = None
    by_all: bool = False  # every expert and the merged model see the images of all tasks


@dataclass(frozen=True)
class TransformRow(Row):
    """Changes task vectors before the merge, or the merged vector after it.

    A function of stage ``task_vectors`` is called with (base, task_vectors, params, context) and returns lazy task
    vectors. One of stage ``merged_vector`` is called with (base, task_vectors, merged, params, context), where merged
    is the ``Static`` model, and returns a ``Static`` model.
    """

    stage: Literal["task_vectors", "merged_vector"] = "task_vectors"
    after_learning: str = ""  # a second function, of stage merged_vector, for merges that learn layer coefficients
    min_experts: int = 1
    stochastic: bool = False
    tokens: bool = False  # takes statistics of every token of a sample
    cost: Cost = Cost(reads=0, sweeps=2)  # beside the merge's

    def load_after_learning(self) -> Callable[..., Any]:
        """Import the second function."""
        return replace(self, function=self.after_learning).load()


@dataclass(frozen=True)
class MergeRow(Row):
    """Makes one model of several.

    ``linear`` is of merges θ₀ + Σ_k λ_k τ_k, whose λ may go on learning beside a calibrator: the λ of each of K experts
    from (params, K), where the merge has not learned them itself. ``proportional`` is of merges whose vector is the
    parameter ``scaling`` times what nothing but the other parameters decides, so that another λ needs no other merge.
    """

    yields: Literal["static", "per_task", "per_sample"] = "static"
    learns: Literal["", "task_coefficients", "layer_coefficients", "mask", "router"] = ""
    min_experts: int = 1
    max_experts: int | None = None
    order_matters: bool = False
    weighted: bool = False  # honours the weights given to experts in a recipe
    stochastic: bool = False
    tokens: bool = False  # takes statistics of every token of a sample
    linear: Callable[[Any, int], float] | None = None
    proportional: bool = False
    attribution: str = ""  # path of the function that gives each expert's part of the merged vector, entry by entry
    cost: Cost = Cost()

    def load_attribution(self) -> Callable[..., Any] | None:
        """Import the function that gives each expert's part; None where the method has none."""
        return replace(self, function=self.attribution).load() if self.attribution else None

    def learned(self, params: Params) -> str:
        """Return which coefficients the method learns with these parameters; '' for none."""
        granularity = getattr(params, "granularity", "")
        return f"{granularity}_coefficients" if granularity and self.learns else self.learns


@dataclass(frozen=True)
class CalibratorRow(Row):
    """Repairs the features of a merged model."""

    needs: frozenset[Need] = frozenset({"unlabelled", "heads"})  # to adapt on, and to score with
    deep: bool = False  # acts inside the encoder, so it cannot be trained on cached output features alone
    learns_coefficients: bool = False  # merging coefficients learn along where its parameter ``coefficients`` says so

    def learned(self, params: Mapping[str, Any]) -> bool:
        """Tell whether merging coefficients learn along with these parameters of a recipe."""
        default = self.params.model_fields["coefficients"].default if self.learns_coefficients else "frozen"
        return self.learns_coefficients and params.get("coefficients", default) != "frozen"

    def parameter_count(self, params: Any, sizes: Mapping[str, int]) -> int:
        """Count the numbers that one module stores in an encoder of these sizes."""
        return sum(math.prod(shape) for shape in params.shapes(sizes).values())


@dataclass(frozen=True)
class FineTuningRow(Row):
    """Trains an expert from the base.

    The function is called with (encoder, params, setting) and returns a ``Strategy``.
    """

    forward: Literal["standard", "linearised"] = "standard"  # how the expert is evaluated
    joint: bool = False  # one model for all tasks together: a reference of the zoo, and no expert
    reference: str = "multitask"  # what the zoo calls it
    factors: bool = False  # leaves low-rank factors beside the dense expert
    cost: float = 1.0  # CPU time of a step, standard training's being 1


@dataclass(frozen=True)
class AlignmentRow(Row):
    """Orders the units of a network like another's.

    The function is called with (fixed, other, symmetry, params, images) and returns permutations by group, where
    ``images(count)`` gives prepared images.
    """
