"""Survey of an import before anything is written: what is recognised, dropped, doubtful or wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePath

from ...errors import EngineError, SettingError, ZooError
from ...layouts import OPEN_CLIP
from ...manifest import RESERVED
from ...store.outputs import free_at
from ...types import Progress
from ...weights.families import distance, family_warnings, far_warnings, same
from ..encoders.heads import DEFAULT_LOGIT_SCALE, ZeroShotHead
from ..modalities import load
from ..names import distinct, expert_name
from .architecture import Architecture, Fact, Fault
from .as_zoo import attempt, inspect_as_zoo
from .documents import kind_of_base
from .found import Row, Survey
from .readings import settle, trials_of
from .request import ImportRequest
from .staged import images_of, stage
from .stated import read_stated
from .take import check_heads, facts_of_models, take_base, take_expert, take_heads
from .tasks import FoundTask, find_tasks, own_name, prompts_fact, said_names


def survey(request: ImportRequest, progress: Progress) -> Survey:
    """Look at everything that is to become a zoo, as thoroughly as at a zoo; nothing is written.

    Files are opened, their form and architecture recognised, open facts decided by the images that came along; then
    values, classes, heads, images and how they agree are checked. Faults are collected, so that everything wrong is
    said at once.

    Args:
        request: what is asked for.
        progress: told how far it is.
    """
    kind = kind_of_base(request.base)
    if kind.surveyor:
        own = load(kind.surveyor)(request, progress)
        attempt(own, lambda: _check_target(own))
        return own
    found = recognised(request, lambda fraction, message="": progress(0.5 * fraction, message))
    attempt(found, lambda: _check_target(found))
    _compare_families(found)
    if not found.faults:
        _inspect(found, lambda fraction, message="": progress(0.5 + 0.5 * fraction, message))
    return found


def recognised(request: ImportRequest, progress: Progress, tasks: Sequence[FoundTask] | None = None) -> Survey:
    """Open files, recognise their form and architecture, and settle open facts by the images that came along.

    Args:
        request: what is asked for.
        progress: told how far it is.
        tasks: with their images, where somebody has found them already.
    """
    found = Survey(request)
    _open(found, lambda fraction, message="": progress(0.4 * fraction, message))
    attempt(found, lambda: check_heads(found))
    if tasks is None:
        attempt(found, lambda: _find_tasks(found))
    else:
        found.tasks = list(tasks)
    if fact := prompts_fact(found.request, found.tasks, found.heads):
        found.facts.append(fact)
    attempt(found, lambda: _logit_scale(found))
    if not found.faults:
        _decide(found, lambda fraction, message="": progress(0.4 + 0.6 * fraction, message))
    return found


def _open(found: Survey, progress: Progress) -> None:
    """Base, experts and heads."""
    request, said = found.request, said_names(found.request)
    base = attempt(found, lambda: take_base(found))
    names = distinct(item.name or own_name(expert_name(PurePath(item.path)), said) for item in request.experts)
    names = [f"expert_{name}" if name in RESERVED else name for name in names]
    for number, (item, name) in enumerate(zip(request.experts, names, strict=True)):
        progress(number / (len(names) + 1), f"Looking at {name}")
        if base is not None:
            attempt(found, lambda item=item, name=name: take_expert(found, item, name, base))
    found.facts += facts_of_models(found)
    progress(len(names) / (len(names) + 1), "Looking at heads and the disk")
    for item in request.heads:
        attempt(found, lambda item=item: take_heads(found, item, said))


def _find_tasks(found: Survey) -> None:
    found.tasks, faults = find_tasks(found.request, [row.task for row in found.experts], found.heads)
    found.faults += map(Fault, faults)
    rows = {row.task: row for row in found.experts}
    for task in found.tasks:
        if task.name in rows and task.note:
            rows[task.name].notes.append(task.note)


def _decide(found: Survey, progress: Progress) -> None:
    """Settle facts about the base that none of its places states: experts' places, then images."""
    architecture = _ask_experts(found)
    if architecture is None or not architecture.open:
        return
    scale = math.exp(DEFAULT_LOGIT_SCALE if found.log_scale is None else found.log_scale)
    heads = {task: ZeroShotHead(head.rows, scale) for task, head in found.heads.items()}
    tasks = {row.name: row.task for row in found.experts}
    try:
        trials = trials_of(found.models, tasks, heads, images_of(found))
        found.architecture, faults = settle(architecture, trials, progress)
    except EngineError as error:
        faults = [Fault(str(error))]
    found.faults += faults


def _ask_experts(found: Survey) -> Architecture | None:
    """Take open facts from what lies beside or inside the experts; they have the base's shapes and were trained so."""
    if found.architecture is not None and found.architecture.open:
        vision = found.architecture.config["vision_cfg"]
        places = []
        for name, source in found.sources.items():
            with suppress(EngineError):  # a config of something else says nothing of these weights
                stated = read_stated(source, vision["image_size"], vision["width"])
                places += [(f"{one.origin} of expert '{name}'", one) for one in stated]
        found.architecture = found.architecture.asked(places)
    return found.architecture


def _logit_scale(found: Survey) -> None:
    """The scale of the heads: given, read from them or from the base, or refused."""
    given = found.request.logit_scale
    if given is not None and not found.request.heads:
        raise SettingError(
            "--logit-scale is the factor of heads that are brought, and none are: heads that are built from the base's "
            "text encoder take the scale in the base's file. Leave --logit-scale out, or give --heads.",
            "logit_scale",
        )
    base = found.text.tensor("logit_scale") if found.text and "logit_scale" in found.text.names else None
    if given is not None:
        value, origin = math.log(given), "given"
    elif found.log_scale is not None:
        value, origin = found.log_scale, "read: the heads"
    elif base is not None and base.numel() == 1 and math.isfinite(float(base)):
        value, origin = float(base), "read: the base"
    elif found.heads:
        raise SettingError(
            "The logit scale cannot be known: the heads have rows of unit norm, and neither they nor the base hold "
            "one. Give --logit-scale, the factor of the cosines (CLIP ends its training at 100).",
            "logit_scale",
        )
    else:
        return
    found.log_scale = value
    found.facts.append(Fact("logit_scale", f"{math.exp(value):.4g}", origin))


def _inspect(found: Survey, progress: Progress) -> None:
    """Look at the zoo that this will be."""
    places = {task.name: f"data/{task.name}" for task in found.tasks if task.images is not None}
    inspect_as_zoo(found, places, stage, progress)


def _check_target(found: Survey) -> None:
    folder = found.request.folder
    found.free = free_at(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ZooError(f"{folder} exists already and is not empty. Give another name or place.")
    if found.needed > 0.98 * found.free:
        raise ZooError(
            f"The zoo needs {found.needed / 1e9:.2f} GB; {found.free / 1e9:.2f} GB are free at {folder}. "
            "Choose another place, or store it in half precision."
        )


def _compare_families(found: Survey) -> None:
    """Compare every expert with the base where it is cheap: what was trained, and is it the right base?"""
    if "base" not in found.models or found.faults:
        return
    base = {name: found.models["base"].tensor(name) for name in OPEN_CLIP.sampled if name in found.models["base"].names}
    trained: dict[str, set[str]] = {}
    for row in found.experts:
        tensors = {name: found.models[row.name].tensor(name) for name in base}
        trained[row.name] = {name for name in base if not same(base[name], tensors[name])}
        row.distance = distance(base, tensors)
        found.warnings += far_warnings(row.name, row.distance)
    with_projection = sorted(name for name, names in trained.items() if OPEN_CLIP.projection in names)
    without = sorted(set(trained) - set(with_projection))
    if with_projection and without:
        found.warnings.append(
            f"Two families are mixed: the projection was trained in {_listed(with_projection)}, and is the base's in "
            f"{_listed(without)}. Their task vectors differ in kind; compare results within one family."
        )
    found.warnings += family_warnings({name: names - {OPEN_CLIP.projection} for name, names in trained.items()})


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


__all__ = ["Row", "Survey", "recognised", "survey"]
