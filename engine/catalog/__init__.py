"""The tables of everything that can be chosen.

Adding a method is one file with its function and one row here: forms, validation, documentation, the command line
and the contract tests are made from the rows. Nothing in this room imports torch; functions are imported when run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from ..errors import RecipeError, nearest
from ..recipe import CalibratorCall, MethodCall, Recipe, explain
from . import (
    alignment,
    basic,
    by_layer,
    calibrators,
    deep_calibrators,
    fine_tuning,
    learned,
    low_rank,
    optimisation,
    routing,
    sparse,
    transforms,
    weighted,
)
from .row import (
    AlignmentRow,
    CalibratorRow,
    Cost,
    FineTuningRow,
    MergeRow,
    NoParams,
    Params,
    Preset,
    Row,
    TransformRow,
    is_parity,
)

AnyRow = TypeVar("AnyRow", bound=Row)

__all__ = [
    "ALIGNMENTS",
    "CALIBRATORS",
    "FINE_TUNING",
    "MERGE_METHODS",
    "TRANSFORMS",
    "AlignmentRow",
    "CalibratorRow",
    "Cost",
    "FineTuningRow",
    "MergeRow",
    "NoParams",
    "Params",
    "Preset",
    "Row",
    "TransformRow",
    "adds_factors",
    "check_experts",
    "check_needs",
    "check_transforms",
    "counts_tokens",
    "fits",
    "is_parity",
    "looks_at_images",
    "params_of",
    "resolve",
    "resolve_call",
    "row_of",
]


def _table(*groups: tuple[AnyRow, ...]) -> dict[str, AnyRow]:
    rows = [row for group in groups for row in group]
    table = {row.name: row for row in rows}
    if len(table) != len(rows):
        raise RuntimeError("two rows of the catalog share a name")
    return table


MERGE_METHODS: dict[str, MergeRow] = _table(
    basic.ROWS, weighted.ROWS, by_layer.ROWS, sparse.ROWS, low_rank.ROWS, optimisation.ROWS, learned.ROWS, routing.ROWS
)
TRANSFORMS: dict[str, TransformRow] = _table(transforms.ROWS)
CALIBRATORS: dict[str, CalibratorRow] = _table(calibrators.ROWS, deep_calibrators.ROWS)
FINE_TUNING: dict[str, FineTuningRow] = _table(fine_tuning.ROWS)
ALIGNMENTS: dict[str, AlignmentRow] = _table(alignment.ROWS)


def row_of(table: dict[str, AnyRow], name: str, what: str) -> AnyRow:
    """Look a row up by name.

    Raises:
        RecipeError: with the nearest valid name.
    """
    if name not in table:
        raise RecipeError(f"There is no {what} '{name}'. {nearest(name, table)}")
    return table[name]


def params_of(row: Row, given: dict[str, Any]) -> Params:
    """Validate a method's parameters and fill in the defaults.

    Raises:
        RecipeError: naming the parameter, what was found and what is valid.
    """
    try:
        return row.params.model_validate(given)
    except ValidationError as error:
        raise RecipeError(f"Parameters of {row.title}: {explain(error, row.params)}") from error


def resolve(recipe: Recipe) -> Recipe:
    """Write the defaults of every method out and refuse what cannot go together.

    Raises:
        RecipeError: an unknown method or parameter, or a combination that a row forbids.
    """
    merge = resolve_call(MERGE_METHODS, recipe.merge, "merge method")
    transforms_ = tuple(resolve_call(TRANSFORMS, call, "transform") for call in recipe.transforms)
    calibrators_ = tuple(
        CalibratorCall(
            **resolve_call(CALIBRATORS, call, "calibrator").model_dump(exclude={"name", "on"}),
            name=call.name,
            on=call.on,
        )
        for call in recipe.calibrators
    )
    if recipe.experts != "all":
        check_experts(recipe, len(recipe.experts))
    return recipe.model_copy(
        update={
            "transforms": transforms_,
            "merge": merge,
            "calibrators": calibrators_,
        }
    )


def looks_at_images(recipe: Recipe) -> bool:
    """Tell whether a recipe's merge, or a transform of it, looks at images; its methods are known."""
    return any(row.needs - {"factors"} for row in _merging(recipe))


def check_transforms(transforms: Sequence[MethodCall], merge: MethodCall) -> None:
    """Refuse transforms of task vectors before a merge that reads factors in their place.

    Raises:
        RecipeError: the transform would change nothing where adapters lie.
    """
    row = MERGE_METHODS[merge.method]
    lost = [TRANSFORMS[call.method].title for call in transforms if TRANSFORMS[call.method].stage == "task_vectors"]
    if "factors" in row.needs and lost:
        raise RecipeError(
            f"{row.title} merges the experts' factors, which {', '.join(lost)} would not change: transforms are of "
            "task vectors. Take it out, or choose a merge of task vectors, such as Task Arithmetic."
        )


def adds_factors(recipe: Recipe) -> bool:
    """Tell whether a recipe's merge reads low-rank factors; its methods are known."""
    return any("factors" in row.needs for row in _merging(recipe))


def counts_tokens(recipe: Recipe) -> bool:
    """Tell whether a recipe's merge, or a transform of it, takes statistics of every token; its methods are known."""
    return any(row.tokens for row in _merging(recipe))


def _merging(recipe: Recipe) -> list[MergeRow | TransformRow]:
    return [MERGE_METHODS[recipe.merge.method], *(TRANSFORMS[call.method] for call in recipe.transforms)]


def fits(row: MergeRow | TransformRow, experts: int) -> bool:
    """Tell whether a method takes this many experts."""
    try:
        check_needs(row, experts)
    except RecipeError:
        return False
    return True


def check_needs(row: MergeRow | TransformRow, experts: int) -> None:
    """Refuse too few or too many experts.

    Raises:
        RecipeError: with how many there are and how many the method takes.
    """
    if experts < row.min_experts:
        least = "one expert" if row.min_experts == 1 else f"{row.min_experts} experts"
        raise RecipeError(f"{row.title} needs at least {least}; {experts or 'none'} chosen.")
    most = getattr(row, "max_experts", None)
    if most is not None and experts > most:
        raise RecipeError(f"{row.title} takes at most {most} experts; {experts} chosen.")


def check_experts(recipe: Recipe, count: int) -> None:
    """Refuse a number of experts, or weights of theirs, that a method of a recipe does not take.

    Args:
        recipe: its methods are known.
        count: of the experts that it chooses.

    Raises:
        RecipeError: naming the method.
    """
    row = MERGE_METHODS[recipe.merge.method]
    for each in (row, *(TRANSFORMS[call.method] for call in recipe.transforms)):
        check_needs(each, count)
    if recipe.experts != "all" and not row.weighted and any(expert.weight != 1.0 for expert in recipe.experts):
        raise RecipeError(f"{row.title} does not take weights of single experts; leave `weight` at 1.")


def resolve_call(table: dict[str, AnyRow], call: MethodCall, what: str) -> MethodCall:
    """Return a call of a method with the defaults of its parameters written out.

    Raises:
        RecipeError: an unknown method or parameter, or a value that it does not take.
    """
    row = row_of(table, call.method, what)
    return MethodCall(method=call.method, params=params_of(row, call.params).model_dump(mode="json"))
