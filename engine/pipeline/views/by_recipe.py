"""Accuracy over λ by recipe of fine-tuning: the same tasks' experts, trained in different ways, each way added up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ...errors import RecipeError, nearest
from ...recipe import ExpertChoice, Recipe
from ..steps import INLINED, A, Inputs, StepParams, step
from ..viewing.base import View, read_document
from ..viewing.on_weights import merge_only
from ..viewing.opening import Opening, Settings
from ..viewing.work import Sizes, Work
from .scaling import ScalingRequest
from .scaling import plan as plan_scaling
from .scaling import work as work_of_one

if TYPE_CHECKING:
    from ..run.plan import RunSteps
    from ..tools import StepTools

FORWARDS = ("standard", "linearised")


class ByRecipeRequest(ScalingRequest):
    """Request for the accuracy over λ of experts by recipe."""

    REFUSAL = "The recipes cannot be compared"

    recipes: tuple[str, ...] = Field((), max_length=20, title="Recipes", description="Of fine-tuning; all by default.")


class ByRecipeParams(StepParams):
    """Parameters of the step that puts recipes together."""

    recipes: tuple[str, ...]
    experts: dict[str, dict[str, str]]  # recipe → task → expert
    split_seed: int


@dataclass(frozen=True)
class ByRecipeInputs(Inputs[A]):
    """The curves of each recipe's experts."""

    recipes: Mapping[str, A] = field(default_factory=dict, metadata=INLINED)


def plan(run: RunSteps, asked: ByRecipeRequest) -> str:
    """Plan the curves of every recipe that has experts for the same tasks.

    Raises:
        RecipeError: a recipe that lacks an expert of one of the tasks.
    """
    from ...zoo.making.records import complete_recipes
    from ..run.plan import steps_of

    tasks = tuple(run.expert_of)
    known = complete_recipes(run.zoo.manifest.experts, tasks)
    for name in asked.recipes:
        if name not in known:
            raise RecipeError(
                f"The zoo has no expert by the recipe '{name}' for each of {', '.join(tasks)}. {nearest(name, known)}"
            )
    keys: dict[str, str] = {}
    chosen = asked.recipes or tuple(known)
    for name in chosen:
        experts = tuple(ExpertChoice(name=expert) for expert in known[name].values())
        other = steps_of(run.recipe.model_copy(update={"experts": experts}), run.store)
        keys[name] = plan_scaling(other, asked)
        run.steps.update(other.steps)
    params = ByRecipeParams(
        recipes=chosen, experts={name: known[name] for name in chosen}, split_seed=run.recipe.probe.split_seed
    )
    return run.make(by_recipe, params, ByRecipeInputs[str](keys))


@step(
    "by_recipe",
    label="Putting the recipes together",
    params=ByRecipeParams,
    inputs=ByRecipeInputs,
    cost=0.1,
    version=2,
)
def by_recipe(inputs: ByRecipeInputs[Path], params: ByRecipeParams, output: Path, tools: StepTools) -> None:
    """Average each recipe's curves over tasks; writes ``by_recipe.json``.

    By recipe and forward (``standard``, ``linearised``): ``accuracy``, the mean over tasks in percent at each of the
    ``scalings``; ``normalised``, the mean of merged over the recipe's own expert's accuracy, evaluated the same way,
    nulls where an expert is never right; ``expert``, the experts' mean. ``left_out``, where λ = 1 is among the
    scalings: by expert of a task that is scored what leaving it out there changes in linearised accuracy, in points:
    ``own`` on its task, ``others`` on average over the other tasks.
    """
    recipes, counts, scalings = {}, set(), []
    for name in params.recipes:
        by_task = read_document(inputs.recipes[name], "scaling")["tasks"]
        tasks = by_task.values()
        counts |= {table["images"] for table in tasks}
        scalings = next(iter(tasks))["scalings"]
        recipes[name] = {
            forward: {
                "accuracy": _mean([table[forward]["accuracy"] for table in tasks]),
                "normalised": _normalised(list(tasks), forward),
                "expert": sum(table["expert"][forward] for table in tasks) / len(tasks),
            }
            for forward in FORWARDS
        } | {"experts": params.experts[name], "departure": sum(table["departure"] for table in tasks) / len(tasks)}
        recipes[name]["left_out"] = _left_out(by_task, params.experts[name])
    document = {"scalings": scalings, "recipes": recipes, "images": sorted(counts), "split_seed": params.split_seed}
    (output / "by_recipe.json").write_text(json.dumps(document))


def _left_out(tables: Mapping[str, Any], experts: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Return by expert what leaving it out at λ = 1 changes on its own task and on the others, in points."""
    found = {}
    if len(tables) < 2 or any(1.0 not in table["scalings"] for table in tables.values()):
        return found
    for own, expert in experts.items():
        if own not in tables:
            continue
        changes = {}
        for task, table in tables.items():
            whole = table["linearised"]["accuracy"][table["scalings"].index(1.0)]
            changes[task] = table["without"][table["experts"].index(expert)] - whole
        others = [change for task, change in changes.items() if task != own]
        found[expert] = {"own": changes[own], "others": sum(others) / len(others)}
    return found


def _normalised(tables: Sequence[Mapping[str, Any]], forward: str) -> list[float | None]:
    """Return the mean over tasks of accuracy in percent of the expert's, at each λ; None where one is never right."""
    if not all(table["expert"][forward] for table in tables):
        return [None] * len(tables[0]["scalings"])
    return _mean([[100 * value / table["expert"][forward] for value in table[forward]["accuracy"]] for table in tables])


def _mean(rows: list[list[float]]) -> list[float]:
    return [sum(column) / len(column) for column in zip(*rows, strict=True)]


def _same_tasks(recipe: Recipe) -> Recipe:
    """Return the recipe without what the curves do not depend on."""
    chosen = merge_only(recipe)
    return chosen.model_copy(update={"transforms": (), "merge": Recipe().merge, "forward": "standard"})


def work(asked: ByRecipeRequest, sizes: Sizes) -> Work:
    """Return what every recipe's curves take."""
    one, recipes = work_of_one(asked, sizes), max(len(asked.recipes), 1)
    return Work(passes=recipes * one.passes, models=recipes * one.models)


def _opened(opening: Opening) -> Settings:
    """Ask for every way in which the zoo's experts were trained."""
    return [{"recipes": opening.ways}] if opening.pair else []


BY_RECIPE = View(
    "by_recipe",
    "Accuracy over λ by recipe",
    ByRecipeRequest,
    plan,
    reduced=_same_tasks,
    work=work,
    needs="zoo",
    opens=_opened,
)
