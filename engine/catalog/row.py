"""What a row of the catalog says about a transform, a merge method or a calibrator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

Category = Literal["basic", "weighted", "sparse", "low_rank", "optimisation", "routing", "transform", "output", "deep"]
Need = Literal["unlabelled", "validation", "heads", "same_task_experts"]
LATER = {"later": True}  # json_schema_extra of a parameter that a method got after recipes with it were run


class Params(BaseModel):
    """Base of every method's parameters: immutable, validated, unknown names refused, nothing but finite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_serializer(mode="wrap")
    def _keep_older_keys(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave later parameters out where they hold their default, so that keys of older recipes stay as they were."""
        values = handler(self)
        for name, field_ in type(self).model_fields.items():
            if field_.json_schema_extra == LATER and getattr(self, name) == field_.default:
                values.pop(name, None)
        return values


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
    """One method: widgets, validation, documentation, command line and contract tests are made from this."""

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
    departure: str = ""  # where paper and code differ, and which one is followed

    def load(self) -> Callable[..., Any]:
        """Import the function (or class) that does the work. Imports torch."""
        module, _, attribute = self.function.partition(":")
        return getattr(import_module(module, package=__name__.split(".", maxsplit=1)[0]), attribute)


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

    def load_after_learning(self) -> Callable[..., Any]:
        """Import the second function."""
        return replace(self, function=self.after_learning).load()


@dataclass(frozen=True)
class MergeRow(Row):
    """Makes one model of several."""

    yields: Literal["static", "per_task", "per_sample"] = "static"
    learns: Literal["", "task_coefficients", "layer_coefficients", "mask", "router"] = ""
    min_experts: int = 1
    max_experts: int | None = None
    order_matters: bool = False
    weighted: bool = False  # honours the weights given to experts in a recipe
    stochastic: bool = False

    def learned(self, params: Params) -> str:
        """Which coefficients the method learns with these parameters; '' for none."""
        granularity = getattr(params, "granularity", "")
        return f"{granularity}_coefficients" if granularity and self.learns else self.learns


@dataclass(frozen=True)
class CalibratorRow(Row):
    """Repairs the features of a merged model."""

    deep: bool = False  # acts inside the encoder, so it cannot be trained on cached output features alone
    needs_task_id: bool = True
