"""Remedies: changes of a recipe that may help a task, each with its effect on that task and on the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...catalog import resolve
from ...errors import EngineError
from ...recipe import CalibratorCall, MethodCall, Recipe
from ..steps import SHARE, apart, step
from ..viewing.anew import TrialParams
from ..viewing.base import View
from ..viewing.by_task import ImagesRequest, ModelInputs, judged, plan_by_task
from ..viewing.opening import of_worst_task
from ..viewing.work import Sizes, Work

if TYPE_CHECKING:
    from torch import nn

    from ..run.plan import RunSteps
    from ..tools import StepTools
    from ..viewing.models import Pictures
    from ..viewing.trials import Trials

OTHERS = 64  # images of each other task
FACTORS = (0.5, 0.75, 1.25)  # of the recipe's λ
RATIOS = (0.3, 0.5, 0.7)  # of layers that LwPTV drops
CONTROL_RATIO = 0.5  # of LwPTV, whose control drops layers at random
FIRST_CALIBRATOR = "surgery"  # is tried where the recipe has none


class RemediesRequest(ImagesRequest):
    """Request to try what may help a task."""

    REFUSAL = "Remedies cannot be tried"


class RemediesParams(TrialParams):
    """Parameters of trying remedies for one task."""

    others: dict[str, str]  # digests of the other tasks' images
    own_experts: dict[str, str] = apart()  # task → its expert


@dataclass(frozen=True)
class Remedy:
    """A change of a recipe and, for merges, how the merge is made anew."""

    kind: str  # scaling, without, pruning, random_layers
    value: float | str
    change: dict[str, Any]  # keys of the recipe with their new values
    arguments: dict[str, Any]  # of :meth:`Trials.encoder`


def plan(run: RunSteps, asked: RemediesRequest) -> str:
    """Plan the trials of remedies; where the recipe has no calibrator, Surgery is trained.

    Raises:
        RecipeError: no images or heads of an expert's task of classes.
    """
    from ..run.plan import RunSteps

    tasks = judged(run)
    if not any(call.on == "merged" for call in run.recipe.calibrators):
        calls = (*run.recipe.calibrators, CalibratorCall(method=FIRST_CALIBRATOR, name=_free_name(run.recipe)))
        run = RunSteps(run.zoo, resolve(run.recipe.model_copy(update={"calibrators": calls})), run.store, run.steps)

    def own(task: str) -> dict[str, Any]:
        rest = {name: run.data_digests[name] for name in tasks if name != task}
        return {**TrialParams.own(run), "others": rest, "own_experts": dict(run.expert_of)}

    on = {call.name: call.on for call in run.recipe.calibrators if call.on == "merged"}
    experts = [run.expert_of[task] for task in tasks]
    return plan_by_task(run, remedies, asked, "Trying what helps {}", on, own, lambda task: experts, right=True)


def remedies_of(params: TrialParams) -> Iterator[Remedy]:
    """Yield what is tried of a merge: other λ, each other expert left out, layers dropped, and layers at random."""
    scaling = params.merge.params.get("scaling")
    names = [name for name, _ in params.experts]
    if isinstance(scaling, int | float) and scaling:
        for factor in FACTORS:
            value = round(scaling * factor, 6)
            merge = MethodCall(method=params.merge.method, params={**params.merge.params, "scaling": value})
            yield Remedy("scaling", value, {"merge": merge.model_dump()}, {"names": names, "merge": merge})
    for name, _ in params.experts:
        if name != params.expert and len(names) > 2:
            rest = [(one, weight) for one, weight in params.experts if one != name]
            chosen = [{"name": one, "weight": weight} for one, weight in rest]
            yield Remedy("without", name, {"experts": chosen}, {"names": [one for one, _ in rest]})
    pruned = [call for call in params.transforms if call.method == "lwptv"]
    if any(call.params.get("eta") is None for call in pruned) or len(names) < 2:
        return
    for eta in RATIOS:
        if all(call.params["eta"] != eta for call in pruned):
            yield _pruned("pruning", "lwptv", eta, params, names)
    if not pruned:
        yield _pruned("random_layers", "random_layers", CONTROL_RATIO, params, names)


def _pruned(kind: str, method: str, eta: float, params: TrialParams, names: list[str]) -> Remedy:
    """Drop another share of layers where the recipe prunes, with its other settings; else before its transforms."""
    if any(call.method == "lwptv" for call in params.transforms):
        calls = tuple(
            call.model_copy(update={"params": {**call.params, "eta": eta}}) if call.method == "lwptv" else call
            for call in params.transforms
        )
    else:
        calls = (MethodCall(method=method, params={"eta": eta}), *params.transforms)
    change = {"transforms": [call.model_dump() for call in calls]}
    return Remedy(kind, eta, change, {"names": names, "transforms": calls})


@step(
    "remedies", label="Trying what helps", params=RemediesParams, inputs=ModelInputs, cost=8.0, gpu=True, threads=SHARE
)
def remedies(inputs: ModelInputs[Path], params: RemediesParams, output: Path, tools: StepTools) -> None:
    """Measure what may help one task, on its images and on a few of every other task; writes ``remedies.json``.

    ``remedies`` is a list of ``kind`` (``scaling``, ``without``, ``pruning``, ``random_layers``: the control of
    pruning, ``calibrator``), ``value``, ``change`` (keys of the recipe with their new values; none where the recipe
    has it already), ``right`` (images (n,) of the task, as :func:`engine.analysis.written.write_array` writes them)
    and ``others`` (task → right answers and images). ``right`` and ``others`` hold the same of ``pretrained``,
    ``merged`` and ``expert``. ``refused``: a list of kind, value and reason.
    """
    from ...analysis.written import write_array
    from ..viewing.models import Models, pictures_of
    from ..viewing.trials import Trials

    zoo, task = params.sources.open(), params.task
    pictures = pictures_of(zoo, task, params.probe, params.images)
    rest = {name: pictures_of(zoo, name, params.probe, OTHERS) for name in params.others}
    trials = Trials(zoo, params, tools, pictures.device)
    models = {name: Models(zoo, inputs, name, pictures.device) for name in (task, *rest)}
    tried, tests = list(remedies_of(params)), len(params.calibrators) + 3
    found, refused, right, others = [], [], {}, {}
    for number, state in enumerate(("pretrained", "merged", "expert")):
        tools.progress(number / (tests + len(tried)), f"{task}, {state}")

        def encoder(name: str, state: str = state) -> nn.Module:
            return models[name].encoder(params.own_experts[name] if state == "expert" else state)

        right[state] = write_array(pictures.right(encoder(task)))
        others[state] = _counted(rest, encoder)
    for number, (name, on) in enumerate(params.calibrators.items()):
        tools.progress((3 + number) / (tests + len(tried)), f"{task}, {name}")
        said = _corrected(inputs.calibrator[name], {task: pictures, **rest}, params)
        known = {"kind": "calibrator", "value": name, "on": on, "right": write_array(said.pop(task))}
        found.append(known | {"others": {one: [int(values.sum()), len(values)] for one, values in said.items()}})
    for number, remedy in enumerate(tried):
        tools.progress((tests + number) / (tests + len(tried)), f"{task}, {remedy.kind} {remedy.value}")
        try:
            made = _maker(trials, remedy)
            known = {"kind": remedy.kind, "value": remedy.value, "change": remedy.change}
            found.append(known | {"right": write_array(pictures.right(made(task))), "others": _counted(rest, made)})
        except EngineError as error:
            refused.append({"kind": remedy.kind, "value": remedy.value, "reason": str(error)})
    document = {
        "remedies": found,
        "refused": refused,
        "right": right,
        "others": others,
        "index": write_array(pictures.rows.astype(np.int32)),
        "labels": write_array(pictures.labels.astype(np.int16)),
        "images": len(pictures.labels),
        "available": pictures.available,
    }
    (output / "remedies.json").write_text(json.dumps(document))


def _maker(trials: Trials, remedy: Remedy) -> Callable[[str], nn.Module]:
    """Return a function task → encoder that merges once where all tasks share the merge."""
    from ...catalog import MERGE_METHODS

    if MERGE_METHODS[trials.params.merge.method].yields != "per_task":
        shared = trials.encoder(**remedy.arguments)
        return lambda task: shared
    return lambda task: trials.encoder(**remedy.arguments, task=task)


def _counted(pictures: Mapping[str, Pictures], encoder: Callable[[str], nn.Module]) -> dict[str, list[int]]:
    """Return right answers and images by task; a task that a merge has no weights for any more is left out."""
    found = {}
    for name, own in pictures.items():
        try:
            made = encoder(name)
        except EngineError:
            continue
        found[name] = [int(own.right(made).sum()), len(own.labels)]
    return found


def _corrected(folder: Path, pictures: Mapping[str, Pictures], params: RemediesParams) -> dict[str, np.ndarray]:
    """Return the images (n,) by task that a calibrator's features are right for."""
    import torch
    from safetensors.torch import load_file

    from ...zoo.images.splits import select

    tensors, zoo = load_file(folder / "corrected.safetensors"), params.sources.open()
    found = {}
    for task, own in pictures.items():
        if task in tensors:
            test = select(zoo.data[task], params.probe).test
            place = {row: number for number, row in enumerate(test.tolist())}
            rows = torch.as_tensor([place[row] for row in own.rows.tolist()])
            found[task] = own.said(tensors[task][rows]) == own.labels
    return found


def _free_name(recipe: Recipe) -> str:
    names = {call.name for call in recipe.calibrators}
    return next(name for name in (FIRST_CALIBRATOR, *map("surgery_{}".format, range(2, 99))) if name not in names)


def first_seed(recipe: Recipe) -> Recipe:
    """Return a recipe with its first seed alone, written out."""
    return resolve(recipe.model_copy(update={"seeds": recipe.seeds[:1]}))


def work(asked: RemediesRequest, sizes: Sizes) -> Work:
    """Return what the merges take on the task's images and a few of every other task."""
    tried = len(FACTORS) + len(RATIOS) + sizes.experts
    images = sizes.looked_at(asked.images, asked.task)
    images += sizes.looked_at(OTHERS) - (sizes.looked_at(OTHERS, asked.task) if asked.task else 0)
    return Work(passes=(tried + 3) * images, merges=tried)


REMEDIES = View("remedies", "Remedies", RemediesRequest, plan, reduced=first_seed, work=work, opens=of_worst_task(500))
