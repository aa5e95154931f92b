"""Merging with other parameters in every layer: gradients over depth, and values by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from ..recipe import explain, explain_item
from .basic import TaskArithmeticParams
from .low_rank import IsoCParams, IsoCtsParams, TsvMergeParams
from .optimisation import DogeParams, WudiParams
from .row import PARITY, Cost, MergeRow, Params
from .sparse import BreadcrumbsParams, DellaParams, TiesParams
from .weighted import KarcherParams, ModelStockParams, MultiSlerpParams, SceParams, SlerpParams

WEIGHT = "weight"
INNER: dict[str, tuple[type[Params], str]] = {  # method → its parameters, and the field that has to be ``tensor``
    "task_arithmetic": (TaskArithmeticParams, ""),
    "ties": (TiesParams, "scope"),
    "breadcrumbs": (BreadcrumbsParams, ""),
    "della": (DellaParams, ""),
    "slerp": (SlerpParams, "scope"),
    "multislerp": (MultiSlerpParams, ""),
    "karcher": (KarcherParams, ""),
    "model_stock": (ModelStockParams, ""),
    "sce": (SceParams, ""),
    "tsv_m": (TsvMergeParams, ""),
    "iso_c": (IsoCParams, ""),
    "iso_cts": (IsoCtsParams, ""),
    "wudi": (WudiParams, ""),
    "doge": (DogeParams, ""),
}
WHOLE = ("doge",)  # compare layers with one another, so that their parameters are the same in all
MAX_SETTINGS = 1000


class Clause(Params):
    """A value for tensors whose names hold a text; all tensors by default."""

    filter: str = Field("", max_length=200)
    values: tuple[float, ...] = Field(min_length=1, max_length=1000)  # several: evenly spaced over depth

    def at(self, depth: float) -> float:
        """Return the value at a depth from 0 (first block) to 1 (last block), between its neighbours."""
        place = depth * (len(self.values) - 1)
        low = min(int(place), len(self.values) - 1)
        high = min(low + 1, len(self.values) - 1)
        return (1 - (place - low)) * self.values[low] + (place - low) * self.values[high]


class Setting(Params):
    """Values of one parameter; the first clause whose text is in a tensor's name counts."""

    parameter: str = Field(max_length=100)
    expert: str = Field("", max_length=100)  # of a weight: the expert; all others by default
    clauses: tuple[Clause, ...] = Field(min_length=1, max_length=1000)

    def at(self, name: str, depth: float) -> float | None:
        """Return the value for a tensor; None where no clause speaks of it."""
        found = next((clause for clause in self.clauses if clause.filter in name), None)
        return None if found is None else found.at(depth)

    def check_bounds(self, model: type[Params]) -> None:
        """Refuse values that a method's parameters do not take in any layer.

        Raises:
            ValueError: with the value and the bound.
        """
        for value in (end for clause in self.clauses for end in (min(clause.values), max(clause.values))):
            try:
                model.model_validate({self.parameter: value})
            except ValidationError as error:  # what parameters say of one another depends on the layer
                for item in error.errors():
                    if item["loc"]:
                        raise ValueError(f"in the settings by layer, {explain_item(item, model)}") from error


class ByLayerParams(Params):
    """Parameters of merging layer by layer."""

    method: Literal[
        "task_arithmetic",
        "ties",
        "breadcrumbs",
        "della",
        "slerp",
        "multislerp",
        "karcher",
        "model_stock",
        "sce",
        "tsv_m",
        "iso_c",
        "iso_cts",
        "wudi",
        "doge",
    ] = Field("task_arithmetic", title="Merge method", description="The method that merges each tensor.")
    normalise: bool = Field(
        False, title="Weights sum to 1", description="Divide the experts' weights by their sum, in every tensor."
    )
    naming: Literal["open_clip", "huggingface"] = Field(
        "open_clip",
        title="Names of tensors",
        description="Whose names filters speak of. Hugging Face has query, key and value apart; so they are merged.",
    )
    params: dict[str, Any] = Field(
        {},
        title="Parameters of the method",
        description="Where no setting says otherwise; what is left out has the method's default.",
        json_schema_extra=PARITY,
    )
    settings: tuple[Setting, ...] = Field(
        (),
        max_length=MAX_SETTINGS,
        title="Settings by layer",
        description="Weights and parameters over depth and by name, as a recipe or mergekit gives them.",
        json_schema_extra=PARITY,
    )

    @field_validator("settings", mode="after")
    @classmethod
    def _weights_of_experts(cls, value: tuple[Setting, ...]) -> tuple[Setting, ...]:
        for setting in value:
            if setting.expert and setting.parameter != WEIGHT:
                raise ValueError(f"'{setting.parameter}' is one for all experts; only weights differ between them")
        return value

    @model_validator(mode="after")
    def _known(self) -> Self:
        model, scope = INNER[self.method]
        for setting in self.settings:
            field = model.model_fields.get(setting.parameter)
            if setting.parameter != WEIGHT and (field is None or field.annotation is not float):
                raise ValueError(f"{self.method} has no number '{setting.parameter}' that could differ between layers")
            if setting.parameter != WEIGHT and self.method in WHOLE:
                raise ValueError(f"{self.method} compares layers, so '{setting.parameter}' cannot differ between them")
            if setting.parameter != WEIGHT:
                setting.check_bounds(model)
        inner = self.inner({})
        if scope and getattr(inner, scope) != "tensor":
            raise ValueError(f"{self.method} works layer by layer with {scope}: tensor only")
        return self

    def experts_named(self) -> tuple[str, ...]:
        """Return the experts that weights are for."""
        return tuple(dict.fromkeys(setting.expert for setting in self.settings if setting.expert))

    def inner(self, values: dict[str, float]) -> Params:
        """Return the method's parameters with some values in the place of the general ones.

        Raises:
            ValueError: a value that the method does not take.
        """
        model, scope = INNER[self.method]
        try:
            return model.model_validate({**({scope: "tensor"} if scope else {}), **self.params, **values})
        except ValidationError as error:
            raise ValueError(explain(error, model)) from error

    def weights(self, experts: Sequence[str], name: str, depth: float) -> list[float]:
        """Return the weights of experts in a tensor: an expert's own, else the general one, else 1."""
        found = []
        for expert in experts:
            own = [setting for setting in self.settings if setting.parameter == WEIGHT and setting.expert == expert]
            shared = [setting for setting in self.settings if setting.parameter == WEIGHT and not setting.expert]
            values = (setting.at(name, depth) for setting in (*own, *shared))
            found.append(next((value for value in values if value is not None), 1.0))
        total = sum(found)
        return [value / total for value in found] if self.normalise and abs(total) > 1e-8 else found

    def values(self, name: str, depth: float) -> dict[str, float]:
        """Return the method's parameters that a setting names for a tensor."""
        found: dict[str, float] = {}
        for setting in self.settings:
            value = setting.at(name, depth)
            if setting.parameter != WEIGHT and value is not None:
                found.setdefault(setting.parameter, value)
        return found


ROWS = (
    MergeRow(
        name="by_layer",
        title="By layer",
        category="weighted",
        params=ByLayerParams,
        function=".merging.by_layer:by_layer",
        attribution=".merging.by_layer:contributions",
        summary="Merges every tensor with parameters of its own: gradients over depth, and values by name.",
        equation=r"\theta^\ell = \theta_0^\ell + M_{p(\ell)}\big(w_1(\ell)\,\tau_1^\ell, \dots, w_K(\ell)\,\tau_K^\ell"
        r"\big)",
        source="Goddard et al., MergeKit, EMNLP 2024 industry track, arXiv:2403.13257",
        url="https://arxiv.org/abs/2403.13257",
        variants=(
            {
                "normalise": True,
                "settings": [{"parameter": "weight", "clauses": [{"filter": "mlp", "values": [0.2, 0.8]}]}],
            },
            {
                "method": "ties",
                "params": {"scope": "tensor"},
                "settings": [{"parameter": "density", "clauses": [{"values": [0.1, 0.9]}]}],
            },
        ),
        survey_with="slerp",
        cost=Cost(reads=2, sweeps=10),
    ),
)
