"""Parts that sections of the calibrate page share: opening a view on demand, choosing how it is drawn."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.pipeline.viewing.base import View
from pages.shared.chrome import empty_state
from pages.shared.nouns import called, kind_of
from pages.shared.on_demand import view_on_demand
from pages.shared.one_of import one_of
from pages.shared.selection import ALL, task_choice
from pages.shared.state import RunView


def open_view(
    run: RunView,
    view: View,
    label: str,
    icon: str,
    takes: str,
    draw: Callable[[RunView, Path], None] | None = None,
    **chosen: str,
) -> Path | None:
    """Return the folder of a run's view, or draw the button that computes it and return None.

    Args:
        run: the run shown.
        view: what is computed.
        label: of the button.
        icon: of the button.
        takes: says what the computation takes; ``{images}`` and the like stand for fields of the request.
        draw: draws the view; where it takes long and is not there, it draws the example's.
        chosen: fields of the request that are not the usual ones.
    """
    request = view.ask(run.report.recipe, **chosen)
    kind = kind_of(run.report)
    takes, label = called(takes.format_map(dict(request)), kind), called(label, kind)
    key = ".".join(("calibrate", view.name, *chosen.values()))
    return view_on_demand(run, view, request, key=key, label=label, icon=icon, takes=takes, draw=draw)


def lacks_blocks(run: RunView, title: str) -> bool:
    """Return whether the merge is of a kind whose blocks cannot be looked at, and say so under a title."""
    if run.report.merged.kind != "per_sample":
        return False
    empty_state(title, called("This merge makes other weights for every image.", kind_of(run.report)))
    return True


def choose(label: str, titles: Mapping[str, str], default: str, place: str, hint: str) -> str:
    """Let one of several ways to draw a view be chosen; the address remembers it."""
    return one_of(
        label,
        list(titles),
        format_func=titles.get,
        default=default,
        key=f"calibrate.{place}",
        help=hint,
    )


def choose_tasks(run: RunView, document: Mapping[str, Any], view: View, hint: str) -> list[str]:
    """Let one of the tasks that a view has be chosen, or all of them."""
    task = task_choice(
        run.report,
        list(document["tasks"]),
        key=f"calibrate.{view.name}.task",
        whole="All tasks",
        help=called(hint, kind_of(run.report)),
    )
    return list(document["tasks"]) if task == ALL else [task]


def count_of(document: Mapping[str, Any], tasks: Sequence[str]) -> str:
    """Return images of a task that were looked at, of those there are."""
    found = [sorted({document["tasks"][task][name] for task in tasks}) for name in ("images", "available")]
    return " of ".join("–".join(f"{end:,}" for end in dict.fromkeys((part[0], part[-1]))) for part in found)
