"""Frames of a film: a recipe for each value of a parameter; a value that is refused leaves a frame with its reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..catalog import MERGE_METHODS, resolve
from ..errors import EngineError, RecipeError
from ..recipe import ExpertChoice, Recipe
from .grid import Setting, SweepRequest, value_text
from .places import place_title

EXPERTS = "experts"  # the place whose values count how many experts are merged
SEED = "seed"  # the place whose values are training seeds: what moves along it is chance
STANDING = ("zoo", "probe", "forward")  # parts of a recipe that say which images are looked at, and beside what
AN_EXPERT = re.compile(r"experts\.\d+\.name")
SAME_IMAGES = "a film shows the same images beside the same experts in every frame; vary this in a sweep"


@dataclass(frozen=True)
class Frame:
    """One value of a film's parameter."""

    number: int  # counted from 0
    value: Any
    recipe: Recipe | None  # resolved; None where the value is refused
    refused: str = ""  # why


def shows_same_images(place: str) -> bool:
    """Return whether every frame over a place shows the same images beside the same experts, as a film has to."""
    return place.partition(".")[0] not in STANDING and AN_EXPERT.fullmatch(place) is None


def experts_can_join(recipe: Recipe) -> bool:
    """Return whether a film may let experts join a merge one after another: where its method takes their weights.

    An expert that has not joined has weight 0, so that its task stays scored and compared, and calibrators train on it,
    as in every other frame. A recipe that left the expert out would leave out its task's images with it.

    Args:
        recipe: its method is known.
    """
    return MERGE_METHODS[recipe.merge.method].weighted


def frames_of(recipe: Recipe, place: str, values: Sequence[Any], experts: Sequence[tuple[str, float]]) -> list[Frame]:
    """Return a frame for each value, in their order.

    Args:
        recipe: what is varied.
        place: a place of the recipe; ``experts``: one expert after another joins the merge; ``seed``: nothing changes
            but the training seed.
        values: that the place takes; whole numbers for ``experts`` and ``seed``.
        experts: names and weights in the order in which they join.

    Raises:
        RecipeError: every value is refused.
    """
    found = []
    for number, value in enumerate(values):
        try:
            at = _at(recipe, place, value, experts)
            if any(getattr(at, part) != getattr(recipe, part) for part in STANDING):
                raise RecipeError(f"The value {value_text(value)} changes what stands still; {SAME_IMAGES}.")
            found.append(Frame(number, value, at))
        except EngineError as error:
            found.append(Frame(number, value, None, str(error)))
    if found and all(frame.recipe is None for frame in found):
        raise RecipeError(f"No frame of the film can be made. {found[0].refused}")
    return found


def film_title(recipe: Recipe, place: str) -> str:
    """Return the title of a film's parameter."""
    return {EXPERTS: "Experts merged", SEED: "Training seed"}.get(place) or place_title(recipe, place)


def _at(recipe: Recipe, place: str, value: Any, experts: Sequence[tuple[str, float]]) -> Recipe:
    if place == SEED:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise RecipeError(f"'{value}' is no training seed; give whole numbers from 0.")
        return resolve(recipe.model_copy(update={"seeds": (value,)}))
    if place != EXPERTS:
        (point,) = SweepRequest(recipe=recipe, settings=(Setting(place=place, values=(value,)),)).points()
        return point.recipe
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= len(experts):
        raise RecipeError(f"'{value}' experts cannot be merged; give whole numbers from 0 to {len(experts)}.")
    if not experts_can_join(recipe):
        raise RecipeError(
            f"{MERGE_METHODS[recipe.merge.method].title} takes no weights of single experts: none of them can be left "
            "out while its task stays scored, as a film needs it. Run the recipe with fewer experts instead."
        )
    joined = tuple(
        ExpertChoice(name=name, weight=weight if turn < value else 0.0) for turn, (name, weight) in enumerate(experts)
    )
    return resolve(recipe.model_copy(update={"experts": joined}))
