"""Conditions of linearised evaluation. Free of torch at import."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ...catalog import CALIBRATORS, MERGE_METHODS, TRANSFORMS, params_of
from ...errors import RecipeError
from ...manifest import Manifest
from ...recipe import Recipe
from ...zoo.folder import choose_experts

LOOKS = frozenset({"unlabelled", "validation"})


def refused(recipe: Recipe, manifest: Manifest) -> Iterator[str]:
    """List what cannot be evaluated by the first-order approximation of an encoder."""
    merge = MERGE_METHODS[recipe.merge.method]
    if recipe.forward == "linearised" and merge.yields == "per_sample":
        yield (
            f"{merge.title} makes weights for each image, which would need a derivative of their own each. Choose a "
            "merge with weights for all images or for each task, or `forward: standard`."
        )
    if recipe.forward == "linearised" or _linearised_experts(recipe, manifest):
        for call in recipe.calibrators:
            row = CALIBRATORS[call.method]
            if row.deep or row.learned(call.params):
                yield (
                    f"{row.title} acts inside the encoder, and a linearised model has no inside of its own. Choose a "
                    "calibrator of the output, such as Surgery, or `forward: standard` with experts trained so."
                )


def doubtful(recipe: Recipe, manifest: Manifest) -> Iterator[str]:
    """List what can be evaluated but is probably not meant."""
    merge, found = MERGE_METHODS[recipe.merge.method], _linearised_experts(recipe, manifest)
    if found and recipe.forward == "standard":
        yield (
            f"{', '.join(found)}: trained linearised, and shown so as experts; their merge is evaluated by the "
            "ordinary encoder. Set `forward: linearised`."
        )
    for row in (merge, *(TRANSFORMS[call.method] for call in recipe.transforms)):
        if recipe.forward == "linearised" and row.needs & LOOKS:
            yield f"{row.title} looks at images through the ordinary encoder, but its merge is evaluated linearised."


def coefficients_of(recipe: Recipe, experts: Sequence[tuple[str, float]]) -> dict[str, float] | None:
    """Return λ_k of every expert where a recipe's merge is θ_0 + Σ λ_k τ_k and evaluated linearised; else None.

    Args:
        recipe: resolved.
        experts: that it chooses, with their weights.
    """
    row = MERGE_METHODS[recipe.merge.method]
    if recipe.forward != "linearised" or recipe.transforms or row.linear is None or row.learns:
        return None
    scaling = row.linear(params_of(row, recipe.merge.params), len(experts))
    return {name: scaling * weight for name, weight in experts}


def refuse_inside(linearised: Collection[str]) -> None:
    """Refuse views that look inside the encoder or run it themselves.

    Args:
        linearised: models of the view that the run evaluates linearised.

    Raises:
        RecipeError: there are some.
    """
    if "merged" in linearised:
        raise RecipeError(
            "This view runs parts of the encoder, and a linearised model is a derivative of the whole. Open a run with "
            "`forward: standard`."
        )
    if linearised:
        raise RecipeError(
            f"This view runs parts of the encoder, and {', '.join(linearised)}, trained linearised, is evaluated in "
            "this run by a derivative of the whole: the view would show another expert. Open a run with experts that "
            "were trained with the ordinary encoder."
        )


def _linearised_experts(recipe: Recipe, manifest: Manifest) -> list[str]:
    try:
        chosen = choose_experts(manifest, recipe)
    except RecipeError:  # listed as an error of its own
        return []
    return [name for name, _ in chosen if manifest.expert_table[name].forward == "linearised"]
