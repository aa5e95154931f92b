"""Plans of views on weights. They share the merge with the runs that have made it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import RecipeError, nearest
from ...store import Store
from ..run.plan import steps_of
from ..steps import SHARE, Plan, make_step
from .weights import MERGED, PRETRAINED, InterpolationRequest, WeightsRequest

VERSION = 1


def plan_weights(request: Mapping[str, Any], store: Store) -> Plan:
    """Plan what is measured of a recipe's experts and merge: ``{"recipe": …, "part": "geometry" | "spectra"}``."""
    asked = WeightsRequest.parse(request)
    run = steps_of(asked.recipe, store)
    merge = run.merge(run.recipe.seeds[0])
    names = [name for name, _ in run.experts]
    identity = {
        "experts": names,
        "digests": {name: run.digests[name] for name in ("base", *names)},
        "tasks": {name: run.zoo.manifest.expert_table[name].task for name in names},
    }
    params = {**identity, "sources": run.sources}
    if asked.part == "spectra":
        last = make_step(
            "weight_spectra",
            params=params,
            identity=identity,
            inputs={"merge": merge},
            version=VERSION,
            label="Singular values of task vectors",
            weight=3.0,
        )
        return Plan((*run.steps.values(), last), last.key, last.key)
    first = make_step(
        "weight_geometry", params=params, identity=identity, version=VERSION, label="Measuring task vectors"
    )
    inputs = {"merge": merge, "geometry": first.key}
    last = make_step(
        "weight_kept",
        params=params,
        identity=identity,
        inputs=inputs,
        version=VERSION,
        label="Comparing the merged vector with the experts'",
    )
    return Plan((*run.steps.values(), first, last), last.key, last.key)


def plan_interpolation(request: Mapping[str, Any], store: Store) -> Plan:
    """Plan accuracy along the path between two models of a recipe's zoo.

    Raises:
        RecipeError: a model that the recipe does not have, or nothing to score.
    """
    asked = InterpolationRequest.parse(request)
    run = steps_of(asked.recipe, store)
    known = [PRETRAINED, MERGED, *(name for name, _ in run.experts), *run.references]
    for name in (asked.start, asked.end):
        if name not in known:
            raise RecipeError(f"The recipe has no model '{name}'. {nearest(name, known)}")
    tasks = [task.name for task in run.in_domain()]
    if not tasks or not run.has_heads:
        raise RecipeError("The experts' tasks have no images or no heads, so a path between models cannot be scored.")
    ends = [asked.start, asked.end]
    inputs = {"merge": run.merge(run.recipe.seeds[0])} if MERGED in ends else {}
    inputs |= run.heads_input()
    stored = {"base" if name == PRETRAINED else name for name in ends if name != MERGED}
    limit = run.probe["samples_per_task"]
    probe = {**run.probe, "samples_per_task": asked.images if limit == "all" else min(limit, asked.images)}
    shared = {
        "start": asked.start,
        "end": asked.end,
        "alphas": asked.alphas,
        "probe": probe,
        "digests": {name: run.digests[name] for name in sorted(stored)},
        "heads": run.digests["heads"],
        "architecture": run.config,
        "preprocess": run.preprocess,
    }
    paths = {}
    for task in tasks:
        identity = {**shared, "task": task, "data": run.data_digests[task]}
        paths[task] = make_step(
            "path",
            params={**identity, "sources": run.sources},
            identity=identity,
            inputs=inputs,
            version=VERSION,
            label=f"From {asked.start} to {asked.end} on {task}",
            weight=2.0,
            gpu=run.device.startswith("cuda"),
            threads=SHARE,
            device_class=run.device,
        )
    params = {
        "start": asked.start,
        "end": asked.end,
        "alphas": asked.alphas,
        "tasks": tasks,
        "split_seed": probe["split_seed"],
    }
    last = make_step(
        "interpolation",
        params=params,
        inputs={task: step.key for task, step in paths.items()},
        version=VERSION,
        label="Putting the paths together",
        weight=0.1,
    )
    return Plan((*run.steps.values(), *paths.values(), last), last.key, last.key)
