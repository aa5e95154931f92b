"""Carrying requests of the command line out, in this process or by who is told to, with a row in the run table."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from ..catalog.titles import recipe_title
from ..errors import EngineError
from ..experiments import ExperimentResult, experiment_names, pool, read_experiment, read_result
from ..manifest import ASSETS, locate_zoo
from ..recipe import Recipe
from ..report import Report, read_report
from ..store import Store
from ..store.outputs import new_folder
from ..store.owners import this_process
from ..store.reporter import Reporter
from ..sweeps import SweepRequest, SweepTable, read_table, sweep_title
from ..types import Progress
from ..zoo.importing.roots import named_zoos
from .executor import run_inline
from .graph import Plan
from .planners import plan_request
from .preflight.estimate import Preflight, read_preflight
from .run.plan import plan_run
from .run.projecting import ProjectionRequest, projection_step
from .studies.experiment import check_sets
from .viewing.base import R, View

COMMAND_LINE = "command line"  # who asked, in the run table
HEARTBEAT = 2.0  # seconds between two signs of life


class Carrier(Protocol):
    """The one that carries a request out and waits for its end."""

    def __call__(
        self, store: Store, kind: str, request: Mapping[str, Any], title: str, progress: Progress | None
    ) -> Path:
        """Return the folder of the result.

        Args:
            store: where artefacts and the row go.
            kind: see :mod:`.kinds`.
            request: what is asked for, JSON values.
            title: of the row.
            progress: told how far it is.

        Raises:
            EngineError: with the reason; the row then says it too.
        """


class _Listener:
    """Writes progress into the run's row and passes it on to the terminal."""

    def __init__(self, reporter: Reporter, store: Store, run: str, progress: Progress | None) -> None:
        self._reporter, self._store, self._run, self._progress = reporter, store, run, progress

    def progress(self, fraction: float, message: str) -> None:
        self._reporter.set(fraction=fraction, message=message)
        if self._progress is not None:
            self._progress(fraction, message)

    def metrics(self, values: Mapping[str, Any]) -> None:
        self._reporter.metrics(values)

    def log(self, line: str) -> None:
        self._store.runs.logs.append(self._run, line)

    def cancelled(self) -> bool:
        return False  # a run at the terminal is stopped with Ctrl-C


def in_this_process(store: Store, kind: str, request: Mapping[str, Any], title: str, progress: Progress | None) -> Path:
    """Carry a request out step by step; a :class:`Carrier`."""
    plan, runs = plan_request(kind, request, store), store.runs
    remember_zoos(store, request)
    owner = this_process("inline")
    row = runs.submit(kind, request, name=title, requested_by=COMMAND_LINE, owner=owner)
    runs.set_step_keys(row.id, (step.key for step in plan.steps))
    reporter, adopt = Reporter(runs, row.id), _Adopter(store, row.id, plan)
    try:
        with _heard_of(store, owner):
            folder = run_inline(plan, store, _Listener(reporter, store, row.id, progress), made=adopt)
    except KeyboardInterrupt:
        runs.cancelled(row.id)
        raise
    except Exception as error:
        runs.fail(row.id, str(error), type(error).__name__)
        raise
    reporter.flush(now=True)
    runs.finish(row.id, adopt.plan.result)
    return folder


@contextmanager
def _heard_of(store: Store, owner: str) -> Iterator[None]:
    """Say every other second that this process still works on its rows: an engine on another host sees nothing else."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT):
            with suppress(Exception):  # a full disk, a database that is started again: the next one may be written
                store.runs.heartbeat(owner)

    threading.Thread(target=beat, name="signs of life", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def remember_zoos(store: Store, request: Mapping[str, Any]) -> None:
    """Put down the zoos that a request names, so that pages may open what somebody at the machine has used."""
    for folder in map(locate_zoo, named_zoos(request)):
        if folder.is_dir() and not folder.is_relative_to(ASSETS):
            store.zoos.add(folder)


def run_recipe(
    recipe: Recipe,
    store: Store,
    *,
    view: Mapping[str, Any] | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
    carry: Carrier = in_this_process,
) -> Report:
    """Run a recipe and return its report.

    Args:
        recipe: what to do.
        store: where artefacts and the row of the run go.
        view: parameters of a projection to compute as well.
        out: folder to copy everything into.
        progress: told how far the run is.
        carry: who carries it out.

    Raises:
        EngineError: with the reason; the row of the run then says it too.
    """
    request = {"recipe": recipe.model_dump(mode="json"), "projection": dict(view) if view else None}
    projection = ProjectionRequest.parse(view) if view else None
    folder = carry(store, "run", request, recipe_title(recipe), progress)
    if progress is not None:
        progress(1.0, "finished")
    if out is not None:
        copy_result(folder, out)
        if projection is not None:
            made = store.find(projection_step(projection, plan_run(recipe, store).result).key)
            copy_result(made, out / "projections" / projection.method)
    return read_report(folder)


def run_sweep(
    recipe: Recipe,
    settings: Sequence[tuple[str, Sequence[Any]]],
    store: Store,
    *,
    progress: Progress | None = None,
    carry: Carrier = in_this_process,
) -> SweepTable:
    """Run a recipe for several values of one or two of its places and return the table.

    Args:
        recipe: what is varied.
        settings: place and values, one or two.
        store: where artefacts and the rows of the sweep and of its runs go.
        progress: told how far the sweep is.
        carry: who carries it out.

    Raises:
        EngineError: with the reason; a run that fails while others do not is said in the table.
    """
    listed = [{"place": place, "values": list(values)} for place, values in settings]
    request = {"recipe": recipe.model_dump(mode="json"), "settings": listed}
    folder = carry(store, "sweep", request, sweep_title(SweepRequest.parse(request)), progress)
    if progress is not None:
        progress(1.0, "finished")
    return read_table(folder)


def make_view(
    view: View[R],
    asked: R,
    store: Store,
    *,
    title: str = "",
    progress: Progress | None = None,
    carry: Carrier = in_this_process,
) -> Path:
    """Compute a view and return the folder that it left.

    Args:
        view: as it is declared.
        asked: what it depends on.
        store: where artefacts and the row go.
        title: of the row; default the view's own.
        progress: told how far it is.
        carry: who carries it out.

    Raises:
        EngineError: with the reason; the row then says it too.
    """
    folder = carry(store, view.name, asked.model_dump(mode="json"), title or view.title, progress)
    if progress is not None:
        progress(1.0, "finished")
    return folder


def preflight_recipe(recipe: Recipe, store: Store, progress: Progress | None = None) -> Preflight:
    """Check everything about a recipe in this process, and estimate what it takes.

    Raises:
        EngineError: the check itself could not be carried out.
    """
    request = {"recipe": recipe.model_dump(mode="json")}
    return read_preflight(in_this_process(store, "preflight", request, f"Check of {recipe_title(recipe)}", progress))


def finetune_experts(
    request: Mapping[str, Any], store: Store, *, progress: Progress | None = None, carry: Carrier = in_this_process
) -> dict[str, dict[str, Any]]:
    """Train experts and put them into their zoo.

    Args:
        request: what :class:`engine.pipeline.zoos.finetune.FinetuneRequest` holds.
        store: where checkpoints, artefacts and the row of the run go.
        progress: told how far the training is.
        carry: who carries it out.

    Returns:
        Expert → record of its training.

    Raises:
        EngineError: with the reason; the row of the run then says it too.
    """
    title = f"Experts of {Path(request['zoo']).name}"
    folder = carry(store, "finetune", request, title, progress)
    if progress is not None:
        progress(1.0, "finished")
    return json.loads((folder / "experts.json").read_text("utf-8"))


def align_experts(
    request: Mapping[str, Any], store: Store, *, progress: Progress | None = None
) -> dict[str, dict[str, Any]]:
    """Reorder the units of experts that start from another base, so that they can be merged with their zoo's own.

    Args:
        request: what :class:`engine.pipeline.zoos.aligning.AlignRequest` holds.
        store: where artefacts and the row of the run go.
        progress: told how far the alignment is.

    Returns:
        Expert, by the name that it is listed by now → what :func:`engine.pipeline.zoos.align.align_expert` records.

    Raises:
        EngineError: with the reason; the row of the run then says it too.
    """
    title = f"Aligned experts of {Path(request['zoo']).name}"
    folder = in_this_process(store, "align", request, title, progress)
    if progress is not None:
        progress(1.0, "finished")
    return json.loads((folder / "aligned.json").read_text("utf-8"))


def run_experiment(
    name: str,
    store: Store,
    *,
    zoo: str = "",
    also: Sequence[str] = (),
    quick: bool = False,
    progress: Progress | None = None,
    carry: Carrier = in_this_process,
) -> ExperimentResult:
    """Repeat an experiment.

    Args:
        name: an experiment of the app, or a file.
        store: where artefacts and the rows of the experiment and of its runs go.
        zoo: a bundled zoo's name or a path; empty means the one that the experiment is meant for.
        also: zoos with other sets of experts, by other seeds, that are judged as one with the first.
        quick: fewer images, shorter training, one seed.
        progress: told how far it is.
        carry: who carries it out.

    Raises:
        EngineError: with the reason; a run that fails while others do not is said in the result.
    """
    spec, found = read_experiment(name), []
    zoos = [zoo or spec.zoo, *also]
    if also:
        check_sets(zoos, store)
    named = name if name in experiment_names() else str(Path(name).absolute())  # the engine has its own folder
    for place in zoos:
        request = {"name": named, "zoo": place, "quick": quick}
        found.append(read_result(carry(store, "experiment", request, spec.title, progress)))
    if progress is not None:
        progress(1.0, "finished")
    return pool(spec, found)


class _Adopter:
    """Gives the parts of a plan that are there a row of their own, and follows a plan that goes on without some."""

    def __init__(self, store: Store, run: str, plan: Plan) -> None:
        self._store, self._run, self.plan = store, run, plan

    def __call__(self, plan: Plan) -> None:
        if plan is not self.plan:
            self.plan = plan
            self._store.runs.set_step_keys(self._run, (step.key for step in plan.steps))
        for part in plan.parts:
            if self._store.find(part.key, checksums=False):
                values = {"name": part.name, "request": part.request, "step_keys": part.step_keys}
                self._store.runs.adopt(self._run, part.key, **values)


def copy_result(folder: Path | None, out: Path) -> None:
    """Copy an artefact's files, without the store's own bookkeeping."""
    if folder is None:
        raise EngineError("The result is no longer in the store.")
    with new_folder(out) as making:
        ignored = shutil.ignore_patterns("artefact.json")
        # contents alone: safetensors makes files that only their owner may read
        shutil.copytree(folder, making, dirs_exist_ok=True, ignore=ignored, copy_function=shutil.copyfile)
