"""The command that computes every view of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import EngineError
from ..rounding import about
from .printing import progress_line, say_line
from .work import Quiet

if TYPE_CHECKING:
    from ..pipeline.viewing.base import View, ViewRequest
    from ..store import Store


def views(
    run: Annotated[str, typer.Argument(help="The id of a finished run, as `runs list` prints it.")],
    only: Annotated[list[str] | None, typer.Option(help="A view by its name; all by default.")] = None,
    foreseen: Annotated[bool, typer.Option("--foreseen", help="Say what each is foreseen to take, compute none.")] = (
        False
    ),
    quiet: Quiet = False,
) -> None:
    """Compute the views that the app's pages open with: weights, blocks, shifts, diagnosis of the worst task.

    One that the run cannot have, or that fails, is told with its reason and the next one begins. What is there already
    is not computed again.
    """
    from ..errors import nearest
    from ..pipeline.offered import offered_views
    from ..report import read_report
    from ..store import Store
    from .runs import folder_of

    store = Store()
    report = read_report(folder_of(store, store.runs.get(run)))
    offered = offered_views(report)
    names = list(dict.fromkeys(view.name for view, _ in offered))
    for name in only or ():
        if name not in names:
            raise EngineError(f"This run has no view '{name}'. {nearest(name, names)}")
    chosen = [(view, asked) for view, asked in offered if not only or view.name in only]
    refused = 0
    for number, (view, asked) in enumerate(chosen, 1):
        task = getattr(asked, "task", "")
        title = f"{number} of {len(chosen)}  {view.title}" + (f", {task}" if task else "")
        refused += not _one(store, view, asked, title, quiet=quiet, foreseen=foreseen)
    if refused:
        say_line(f"{refused} of {len(chosen)} views are not there, for the reasons above.")


def _one(store: Store, view: View, asked: ViewRequest, title: str, *, quiet: bool, foreseen: bool) -> bool:
    """Compute one view and say how it went; return whether it is there, or would be."""
    from ..pipeline.local import make_view
    from ..pipeline.planners import plan_request
    from ..pipeline.preflight.views import foresee

    try:
        plan = plan_request(view.name, asked.model_dump(mode="json"), store)
        if store.find(plan.result, checksums=False) is not None:
            say_line(f"{title}: there already")
            return True
        expected = foresee(view, asked, store, finished=True)
        say_line(title if expected is None else f"{title}: {about(expected.seconds)}")
        if not foreseen:
            make_view(view, asked, store, progress=None if quiet else progress_line())
    except EngineError as error:
        say_line(f"{title}: not computed. {error}")
        return False
    return True
