"""Plans of views on runs. They share every step with the runs that have made it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..catalog import CALIBRATORS, MERGE_METHODS
from ..errors import RecipeError
from ..store import Store
from .plan import steps_of
from .run_views import DepthRequest, FeatureViewRequest
from .steps import SHARE, Plan, Step, make_step

VERSION = 1
LABELS = {"outliers": "Measuring distances to class prototypes", "wrong_task": "Swapping calibrators between tasks"}


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
            "depth", params={**identity, "expert": expert, "sources": run.sources}, identity=identity, inputs=inputs,
            version=VERSION, label=f"Following {task} through the blocks", weight=2.0,
            gpu=run.device.startswith("cuda"), threads=SHARE, device_class=run.device,
        )  # fmt: skip
    last = make_step(
        "depth_table", params={"tasks": tasks, "split_seed": run.probe["split_seed"]},
        inputs={task: step.key for task, step in steps.items()}, version=VERSION, label="Putting the tasks together",
        weight=0.1,
    )  # fmt: skip
    return Plan((*_read(run.steps, inputs.values()), *steps.values(), last), last.key, last.key)


def plan_feature_view(request: Mapping[str, Any], store: Store) -> Plan:
    """Plan what is made of a run's features: ``{"recipe": …, "part": "outliers" | "wrong_task"}``.

    Raises:
        RecipeError: the recipe's run has no features.
    """
    asked = FeatureViewRequest.parse(request)
    run = steps_of(asked.recipe, store)
    if not run.has_heads or not run.in_domain():
        raise RecipeError("The experts' tasks have no images or no heads, so this run leaves no features to look at.")
    bundle = run.bundle()
    last = make_step(
        asked.part, params={"sources": run.sources}, identity={}, inputs={"bundle": bundle}, version=VERSION,
        label=LABELS[asked.part],
    )  # fmt: skip
    return Plan((*run.steps.values(), last), last.key, last.key)


def _read(steps: Mapping[str, Step], keys: Iterable[str]) -> list[Step]:
    """Those steps that lead to some keys; a plan computes whatever nobody reads, and a view wants no more of a run."""
    wanted, stack = set(), list(keys)
    while stack:
        key = stack.pop()
        if key in steps and key not in wanted:
            wanted.add(key)
            stack.extend(steps[key].needs)
    return [step for key, step in steps.items() if key in wanted]
