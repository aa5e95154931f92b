"""From a row of the run table to its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..errors import EngineError, nearest
from ..recipe import Request, parse_recipe
from ..store import Store
from ..sweeps import SweepRequest
from .collecting import CollectRequest, plan_collect
from .graph import Plan
from .kinds import all_kinds
from .preflight.check import plan_preflight
from .preview.plan import plan_preview
from .run.plan import plan_projection, plan_run, steps_of
from .run.projecting import ProjectionRequest
from .studies.experiment import ExperimentRequest, plan_experiment
from .studies.sweep import plan_sweep
from .viewing.base import View, ViewRequest
from .views import all_views
from .zoos.align import AlignRequest, plan_align
from .zoos.copy import CopyRequest, plan_copy
from .zoos.fetch import FetchRequest, plan_fetch
from .zoos.finetune import FinetuneRequest, plan_finetune
from .zoos.hub import HubRequest, plan_hub
from .zoos.import_checkpoints import plan_import
from .zoos.pictures import RegisterRequest, plan_register

Planner = Callable[[Mapping[str, Any], Store], Plan]


def plan_request(kind: str, request: Mapping[str, Any], store: Store) -> Plan:
    """Plan what a row of the run table asks for.

    Args:
        kind: see :mod:`.kinds`.
        request: for a run ``{"recipe": …, "projection": …}``, for a projection its parameters and the run's key
            (``bundle``), for other kinds what their request model holds.
        store: gives digests of files.

    Raises:
        EngineError: the request cannot be carried out, with the reason.
    """
    if kind in all_views():
        return plan_view(all_views()[kind], request, store)
    if kind not in PLANNERS:
        raise EngineError(f"There is no kind of work '{kind}'. {nearest(kind, all_kinds())}")
    return PLANNERS[kind](request, store)


def plan_view(view: View, request: Mapping[str, Any], store: Store) -> Plan:
    """Plan a view: its own steps and those of the run that lead to it.

    Raises:
        EngineError: the request is not valid, or the run cannot be looked at this way.
    """
    asked = view.request.parse(request)
    return _going_on(view, asked, store, {}) if view.goes_on else _viewed(view, asked, store)


def _viewed(view: View, asked: ViewRequest, store: Store, *lost: Mapping[str, str]) -> Plan:
    run = steps_of(asked.recipe, store, unaligned=view.unaligned)
    return Plan.to(view.plan(run, asked, *lost), run.steps)


def _going_on(view: View, asked: ViewRequest, store: Store, lost: Mapping[str, str]) -> Plan:
    """Plan a view that goes on without steps that failed, as far as it says that it can."""
    plan = _viewed(view, asked, store, lost)

    def without(key: str, reason: str) -> Plan | None:
        try:
            return _going_on(view, asked, store, {**lost, key: reason}) if key != plan.result else None
        except EngineError:
            return None  # nothing would be left

    return replace(plan, without=without)


def _parsed(request: type[Request], plan: Callable[[Any, Store], Plan]) -> Planner:
    return lambda document, store: plan(request.parse(document), store)


def _run(request: Mapping[str, Any], store: Store) -> Plan:
    view = ProjectionRequest.parse(request["projection"]) if request.get("projection") else None
    return plan_run(parse_recipe(request.get("recipe")), store, view)


def _projection(request: Mapping[str, Any], store: Store) -> Plan:
    view = ProjectionRequest.parse({name: value for name, value in request.items() if name != "bundle"})
    return plan_projection(view, str(request.get("bundle", "")), store)


PLANNERS: dict[str, Planner] = {
    "run": _run,
    "projection": _projection,
    "preflight": plan_preflight,
    "preview": plan_preview,
    "import": plan_import,
    "sweep": _parsed(SweepRequest, plan_sweep),
    "experiment": _parsed(ExperimentRequest, plan_experiment),
    "register": _parsed(RegisterRequest, plan_register),
    "fetch": _parsed(FetchRequest, plan_fetch),
    "hub": _parsed(HubRequest, plan_hub),
    "copy": _parsed(CopyRequest, plan_copy),
    "finetune": _parsed(FinetuneRequest, plan_finetune),
    "align": _parsed(AlignRequest, plan_align),
    "gc": _parsed(CollectRequest, plan_collect),
}
