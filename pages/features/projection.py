"""The projection that a view shows: the widgets that choose it, its place, and its computation while it runs."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.figures.drawing import task_titles
from engine.pipeline.run.projecting import TITLES, ProjectionRequest, projection_step
from engine.store import Run
from pages.shared.chrome import error_state, stale_state
from pages.shared.nouns import called, kind_of
from pages.shared.on_demand import latest
from pages.shared.one_of import one_of
from pages.shared.progress import show_progress
from pages.shared.service import ask, told_when_refused
from pages.shared.state import RunView, store


@dataclass(frozen=True)
class Found:
    """A projection that exists: its folder, what names its content, and what was asked for."""

    folder: Path
    key: str
    request: ProjectionRequest


def choose(run: RunView, key: str) -> ProjectionRequest:
    """Draw widgets for the method, its parameters and its images; returns what they ask for."""
    default = ProjectionRequest()
    method = one_of(
        "Projection",
        list(TITLES),
        format_func=TITLES.get,
        default=default.method,
        key=f"{key}.method",
        persist_state="session",
        help="How features become points: PCA keeps large distances, "
        "[t-SNE](https://jmlr.org/papers/v9/vandermaaten08a.html) and "
        "[UMAP](https://arxiv.org/abs/1802.03426) keep neighbourhoods.",
    )
    with st.popover("Settings", icon=":material/tune:", key=f"{key}.settings"):
        values = _settings(run, key, method, default)
    return ProjectionRequest(method=method, **values)


def _settings(run: RunView, key: str, method: str, default: ProjectionRequest) -> dict[str, Any]:
    """Return the parameters of one method. Numbers are bounded as the request itself is."""
    values: dict[str, Any] = {}

    def ask(name: str, step: float, low: float, high: float) -> None:
        field = ProjectionRequest.model_fields[name]
        kind = type(getattr(default, name))
        values[name] = st.number_input(
            called(field.title or name.capitalize(), kind_of(run.report)),
            kind(low),
            kind(high),
            getattr(default, name),
            kind(step),
            help=field.description,
            key=f"{key}.{name}",
            bind="query-params",
            persist_state="session",
            format="%g" if kind is float else "%d",
        )

    if method == "tsne":
        ask("perplexity", 5, 2, 500)
    if method == "umap":
        ask("neighbours", 5, 2, 500)
        ask("minimum_distance", 0.05, 0, 1)
    ask("images", 100, 10, 20_000)
    ask("seed", 1, 0, 10_000)
    tasks = task_titles(run.report)
    values["task"] = st.selectbox(
        f"{kind_of(run.report).many.capitalize()} of",
        ["all", *tasks],
        format_func=lambda name: tasks.get(name, "all tasks with an expert"),
        key=f"{key}.task",
        bind="query-params",
        help="All tasks share one projection; one task alone gets a projection of its own.",
    )
    return values


def locate(run: RunView, request: ProjectionRequest) -> Found | None:
    """Find a projection: beside the run, in the store, or made by an earlier request for an example."""
    beside = run.folder / "projections" / request.method
    if _params(beside) == request.params():
        return Found(beside, f"{run.stamp}:{_digest(request.params())}", request)
    bundle = _bundle(run, request)
    if bundle is None:
        return None
    step = projection_step(request, bundle)
    folder = store().find(step.key, checksums=False)
    return Found(folder, step.key, request) if folder else None


def any_projection(run: RunView) -> Found | None:
    """Return some projection of the run: t-SNE with defaults, else another method's, else whatever lies beside it."""
    for method in ("tsne", "umap", "pca"):
        found = locate(run, ProjectionRequest(method=method))
        if found:
            return found
        params = _params(run.folder / "projections" / method)
        if params:
            return locate(run, ProjectionRequest.parse(params))
    return None


def compute(run: RunView, request: ProjectionRequest, key: str, *, stale: bool) -> None:
    """Draw a button, its progress, or why it failed, in place of a projection that does not exist."""
    row = _latest(run, request)
    if row is not None and row.active:
        show_progress(row, key)
        return
    if row is not None and row.state == "failed":
        error_state(EngineError(row.error), "Change the settings and compute it again.")
    elif stale:
        stale_state(f"{describe(request)} is not computed yet; an earlier projection is shown.")
    st.button(
        f"Compute {request.title}",
        key=f"{key}.compute",
        type="primary",
        icon=":material/scatter_plot:",
        on_click=_submit,
        args=(run, request),
    )


def describe(request: ProjectionRequest, document: dict[str, Any] | None = None) -> str:
    """Return a projection in words: method, neighbourhood, seed, and n of N images where they are known."""
    parts = [request.title]
    if request.method == "tsne":
        parts.append(f"perplexity {request.perplexity:g}")
    if request.method == "umap":
        parts.append(f"{request.neighbours} neighbours, minimum distance {request.minimum_distance:g}")
    parts.append(f"seed {request.seed}")
    if document:
        images, available = (sum(document.get(name, {}).values()) for name in ("images", "available"))
        parts.append(f"{images:,} of {available:,} evaluation images")
    return ", ".join(parts)


@told_when_refused
def _submit(run: RunView, request: ProjectionRequest) -> None:
    """Ask for a projection; of an example, for its recipe with that projection."""
    kind, document = _request(run, request)
    ask(kind, document, describe(request), None if run.example else run.id)


def _request(run: RunView, request: ProjectionRequest) -> tuple[str, dict[str, Any]]:
    view = request.model_dump(mode="json")
    if _in_store(run):
        return "projection", {**view, "bundle": run.key}
    return "run", {"recipe": run.report.recipe.model_dump(mode="json"), "projection": view}


def _latest(run: RunView, request: ProjectionRequest) -> Run | None:
    """Return the newest row that asks for exactly this."""
    return latest(*_request(run, request))


def _bundle(run: RunView, request: ProjectionRequest) -> str | None:
    if _in_store(run):
        return run.key
    row = _latest(run, request)
    return row.result if row is not None and row.state == "finished" and _is_key(row.result) else None


def _in_store(run: RunView) -> bool:
    return run.key is not None and _is_key(run.key)


def _is_key(text: str) -> bool:
    return len(text) == 64 and "/" not in text


def _params(folder: Path) -> dict[str, Any] | None:
    """Return parameters of a projection beside a run."""
    try:
        return json.loads((folder / "projection.json").read_text("utf-8"))["params"]
    except (OSError, ValueError, KeyError):
        return None


def _digest(params: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(params, sort_keys=True).encode()).hexdigest()[:16]
