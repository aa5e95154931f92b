"""Views that the diagnosis of a task asks for, and asking for all of them at once."""

from pathlib import Path

import streamlit as st

from engine.figures.diagnosis.answer import QUESTIONS, Scope
from engine.pipeline.viewing.base import View, ViewRequest
from engine.pipeline.views.attention import ATTENTION
from engine.pipeline.views.blame import BLAME
from engine.pipeline.views.depth import DEPTH
from engine.pipeline.views.direction import DIRECTION
from engine.pipeline.views.remedies import REMEDIES
from engine.pipeline.views.transplant import TRANSPLANT
from pages.shared.nouns import called, kind_of
from pages.shared.on_demand import ask_view, view_at_hand, view_on_demand, view_row
from pages.shared.service import told_when_refused
from pages.shared.state import RunView

IMAGES = 500  # of the task, at most, that are looked at
QUESTIONS_WITH_VIEWS: dict[int, View] = {
    2: DIRECTION,
    3: DEPTH,
    4: BLAME,
    5: TRANSPLANT,
    6: ATTENTION,
    7: REMEDIES,
}
TAKES = {
    2: "Compares the features of every evaluation image with the expert's, as the head sees them.",
    3: "Takes up to {images} images of this task through every block of every model.",
    4: "Merges without each expert, with each beside the task's own, and with random vectors; up to {images} images.",
    5: "Exchanges each part between merged model and expert, one at a time; up to {images} images.",
    6: "Follows attention through merged model and expert; up to {images} images.",
    7: "Merges with each change of the recipe and scores this task (up to {images} images) and all others (64 each).",
}


def request_of(run: RunView, number: int, task: str) -> ViewRequest:
    """Return what is asked of the view behind an answer."""
    view = QUESTIONS_WITH_VIEWS[number]
    return view.ask(run.report.recipe) if number == 2 else view.ask(run.report.recipe, task=task, images=IMAGES)


def question(run: RunView, number: int) -> str:
    """Return the question of an answer, as it is put for a run's kind of data."""
    return called(QUESTIONS[number - 1], kind_of(run.report))


def folder_of(run: RunView, scope: Scope, number: int) -> Path | None:
    """Return the folder of a view, or draw the button that computes it, or its progress, and return None."""
    view, request = QUESTIONS_WITH_VIEWS[number], request_of(run, number, scope.task)
    return view_on_demand(
        run,
        view,
        request,
        key=f"diagnose.{number}.{scope.task}",
        label=f"Answer: {question(run, number)}",
        icon=":material/troubleshoot:",
        takes=called(TAKES[number].format(images=IMAGES), kind_of(run.report)),
        title=_title(view, number, scope),
    )


def at_hand(run: RunView, scope: Scope, number: int) -> Path | None:
    """Return the folder of a view that is there already; draws nothing."""
    return view_at_hand(run, QUESTIONS_WITH_VIEWS[number], request_of(run, number, scope.task))


def compute_all(run: RunView, scope: Scope) -> None:
    """Draw a button that asks for all answers that are not there yet; nothing where they are, or are coming."""
    wanted = []
    for number, view in QUESTIONS_WITH_VIEWS.items():
        request = request_of(run, number, scope.task)
        row = view_row(view, request)
        if at_hand(run, scope, number) is None and not (row and row.active):
            wanted.append(number)
    if len(wanted) > 1:
        which = "all" if len(wanted) == len(QUESTIONS_WITH_VIEWS) else f"the {len(wanted)} missing"
        st.button(
            f"Compute {which} answers",
            key=f"diagnose.all.{scope.task}",
            type="primary",
            icon=":material/playlist_play:",
            on_click=_ask_all,
            args=(run, scope, wanted),
            help="They are computed one after another by the engine; each appears when it is there.",
        )


@told_when_refused
def _ask_all(run: RunView, scope: Scope, numbers: list[int]) -> None:
    for number in numbers:
        view = QUESTIONS_WITH_VIEWS[number]
        ask_view(run, view, request_of(run, number, scope.task), _title(view, number, scope))


def _title(view: View, number: int, scope: Scope) -> str:
    return view.title if number == 2 else f"{view.title}, {scope.title}"
