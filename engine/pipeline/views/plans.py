"""Plans of views on runs. They share every step with the runs that have made it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...catalog import CALIBRATORS, MERGE_METHODS
from ...catalog.basic import TaskArithmeticParams
from ...errors import RecipeError
from ...recipe import Recipe
from ...store import Store
from ..run.plan import RunSteps, steps_of
from ..steps import SHARE, Plan, Step, make_step
from .request import DepthRequest, FeatureViewRequest, ShiftRequest, StitchingRequest

VERSION = 1
LABELS = {
    "outliers": "Measuring distances to class prototypes",
    "wrong_task": "Swapping calibrators between tasks",
    "predictions": "Asking every model about every image",
    "coverage": "Comparing predicted spreads with residuals",
}
VERSIONS = {"outliers": 2}  # of parts that give more than they did at first


def plan_depth(request: Mapping[str, Any], store: Store) -> Plan:
    """Plan the comparison of block outputs with the experts': ``{"recipe": …, "images": …}``.

    Raises:
        RecipeError: no images of an expert's task, or weights that change from image to image.
    """
    asked = DepthRequest.parse(request)
    run = steps_of(asked.recipe, store)
    row = MERGE_METHODS[run.recipe.merge.method]
    if row.yields == "per_sample":
        raise RecipeError(
            f"{row.title} makes other weights for every image, so there are no blocks to follow. "
            "Choose a run with a static merge or one by task."
        )
    tasks = [task.name for task in run.in_domain()]
    if not tasks:
        raise RecipeError("The experts' tasks have no images, so blocks cannot be compared. Add `data:` to zoo.yaml.")
    seed = run.recipe.seeds[0]
    deep = [call for call in run.recipe.calibrators if CALIBRATORS[call.method].deep]
    inputs = {"merge": run.merge(seed)}
    if deep:
        roles = run.seed_inputs(seed)
        inputs |= {f"calibrator/{call.name}": roles[f"{seed}/calibrator/{call.name}"] for call in deep}
    shared = {
        "images": asked.images,
        "probe": run.probe,
        "base": run.digests["base"],
        "calibrators": {call.name: call.on for call in deep},
        "architecture": run.config,
        "preprocess": run.preprocess,
    }
    steps = {}
    for task in tasks:
        expert = run.expert_of[task]
        identity = {**shared, "task": task, "data": run.data_digests[task], "digest": run.digests[expert]}
        steps[task] = make_step(
            "depth",
            params={**identity, "expert": expert, "sources": run.sources},
            identity=identity,
            inputs=inputs,
            version=VERSION,
            label=f"Following {task} through the blocks",
            weight=2.0,
            gpu=run.device.startswith("cuda"),
            threads=SHARE,
            device_class=run.device,
        )
    last = make_step(
        "view_table",
        params={"view": "depth", "tasks": tasks, "split_seed": run.probe["split_seed"]},
        inputs={task: step.key for task, step in steps.items()},
        version=VERSION,
        label="Putting the tasks together",
        weight=0.1,
    )
    return Plan((*_read(run.steps, inputs.values()), *steps.values(), last), last.key, last.key)


def plan_feature_view(request: Mapping[str, Any], store: Store) -> Plan:
    """Plan what is made of a run's features: ``{"recipe": …, "part": "outliers" | "wrong_task" | "predictions"}``.

    Raises:
        RecipeError: the recipe's run has no features.
    """
    asked = FeatureViewRequest.parse(request)
    run = steps_of(asked.recipe, store)
    if not run.has_heads or not run.in_domain():
        raise RecipeError("The experts' tasks have no images or no heads, so this run leaves no features to look at.")
    bundle = run.bundle()
    last = make_step(
        asked.part,
        params={"sources": run.sources},
        identity={},
        inputs={"bundle": bundle},
        version=VERSIONS.get(asked.part, VERSION),
        label=LABELS[asked.part],
    )
    return Plan((*run.steps.values(), last), last.key, last.key)


def plan_stitching(request: Mapping[str, Any], store: Store) -> Plan:
    """Plan stitched networks and cross-task linearity: ``{"recipe": …, "images": …}``.

    Raises:
        RecipeError: no images or heads of an expert's task, or weights that change from image to image.
    """
    asked = StitchingRequest.parse(request)
    run = steps_of(asked.recipe, store)
    key = stitching_steps(run, asked.images)
    return Plan(tuple(_read(run.steps, [key])), key, key)


def plan_shift(request: Mapping[str, Any], store: Store) -> Plan:
    """Plan what a run's states make of shifted images: ``{"recipe": …, "images": …}``.

    Raises:
        RecipeError: no images or heads of an expert's task.
    """
    asked = ShiftRequest.parse(request)
    run = steps_of(asked.recipe, store)
    key = shift_steps(run, asked.images)
    return Plan(tuple(_read(run.steps, [key])), key, key)


def stitching_steps(run: RunSteps, images: int = StitchingRequest.model_fields["images"].default) -> str:
    """Add the steps of a run's stitched networks to its own; the key of the last.

    Raises:
        RecipeError: no images or heads of an expert's task, or weights that change from image to image.
    """
    row = MERGE_METHODS[run.recipe.merge.method]
    if row.yields == "per_sample":
        raise RecipeError(
            f"{row.title} makes other weights for every image, so there are no blocks to stitch. "
            "Choose a run with a static merge or one by task."
        )
    tasks, names = _scored_tasks(run), [name for name, _ in run.experts]
    calls = {call.name: call.on for call in run.recipe.calibrators}
    weights = combination(run.recipe, dict(run.experts))

    def own(task: str) -> tuple[dict[str, Any], dict[str, Any]]:
        expert = run.expert_of[task]
        other = names[(names.index(expert) + 1) % len(names)] if len(names) > 1 else ""
        params = {"expert": expert, "other": other, "experts": names}
        identity = {"expert": run.digests[expert], "other": run.digests.get(other, "")}
        return params, identity | {"experts": [run.digests[name] for name in names]}

    shared = {"images": images, "calibrators": calls, "coefficients": weights}
    return _task_steps(run, "stitching", "Stitching networks on {}", tasks, shared, own)


def shift_steps(run: RunSteps, images: int = ShiftRequest.model_fields["images"].default) -> str:
    """Add the steps that show a run's states shifted images to its own; the key of the last.

    Raises:
        RecipeError: no images or heads of an expert's task, or weights that change from image to image.
    """
    calls = {call.name: call.on for call in run.recipe.calibrators}
    shifted = {
        task: [t.name for t in run.zoo.manifest.tasks if t.shifted_from == task and t.name in run.zoo.data]
        for task in run.expert_of
    }

    def own(task: str) -> tuple[dict[str, Any], dict[str, Any]]:
        params = {"expert": run.expert_of[task], "own": shifted[task]}
        identity = {"expert": run.digests[run.expert_of[task]]}
        return params, identity | {"own": {name: run.data_digests[name] for name in shifted[task]}}

    shared = {"images": images, "calibrators": calls}
    return _task_steps(run, "shift", "Shifting the images of {}", _scored_tasks(run), shared, own)


def combination(recipe: Recipe, experts: Mapping[str, float]) -> dict[str, float] | None:
    """Coefficients a_t of a merge θ₀ + Σ a_t τ_t, by expert; None where a merge is no such sum."""
    if recipe.transforms:
        return None
    if recipe.merge.method == "weight_average":
        return {name: weight / len(experts) for name, weight in experts.items()}
    if recipe.merge.method == "task_arithmetic":
        scaling = TaskArithmeticParams.model_validate(recipe.merge.params).scaling
        return {name: scaling * weight for name, weight in experts.items()}
    return None


def _scored_tasks(run: RunSteps) -> list[str]:
    tasks = [task.name for task in run.in_domain()]
    if not tasks or not run.has_heads:
        raise RecipeError("The experts' tasks have no images or no heads, so nothing can be scored with them.")
    return tasks


def _task_steps(
    run: RunSteps,
    view: str,
    label: str,
    tasks: Iterable[str],
    shared: Mapping[str, Any],
    own: Callable[[str], tuple[dict[str, Any], dict[str, Any]]],
) -> str:
    """A step for every task, and one that puts them together.

    Args:
        run: the run whose merge and calibrators are read.
        view: name of the steps' function and of what it writes.
        label: with a place for the task.
        tasks: in-domain ones.
        shared: parameters of all tasks, part of the identity.
        own: task → its parameters, and what stands for them in the identity.
    """
    seed = run.recipe.seeds[0]
    inputs = {"merge": run.merge(seed), **run.heads_input()}
    if run.recipe.calibrators:
        roles = run.seed_inputs(seed)
        names = [f"calibrator/{call.name}" for call in run.recipe.calibrators]
        inputs |= {name: roles[f"{seed}/{name}"] for name in names}
    models = {"probe": run.probe, "base": run.digests["base"], "heads": run.digests["heads"]}
    models |= {"architecture": run.config, "preprocess": run.preprocess}
    keys = {}
    for task in tasks:
        params, digests = own(task)
        every = {**shared, **models, "task": task}
        step = make_step(
            view,
            params={**every, **params, "sources": run.sources},
            identity={**every, **digests, "data": run.data_digests[task]},
            inputs=inputs,
            version=VERSION,
            label=label.format(task),
            weight=4.0,
            gpu=run.device.startswith("cuda"),
            threads=SHARE,
            device_class=run.device,
        )
        run.steps[step.key] = step
        keys[task] = step.key
    last = make_step(
        "view_table",
        params={"view": view, "tasks": list(keys), "split_seed": run.probe["split_seed"]},
        inputs=keys,
        version=VERSION,
        label="Putting the tasks together",
        weight=0.1,
    )
    run.steps[last.key] = last
    return last.key


def _read(steps: Mapping[str, Step], keys: Iterable[str]) -> list[Step]:
    """Those steps that lead to some keys; a plan computes whatever nobody reads, and a view wants no more of a run."""
    wanted, stack = set(), list(keys)
    while stack:
        key = stack.pop()
        if key in steps and key not in wanted:
            wanted.add(key)
            stack.extend(steps[key].needs)
    return [step for key, step in steps.items() if key in wanted]
