"""The seven answers of a diagnosis, each with its picture, its sentence, its n and its control."""

from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import streamlit as st

from engine.errors import EngineError
from engine.figures.diagnosis.answer import Answer, Scope
from engine.figures.diagnosis.attention import attention_answer, shown_images
from engine.figures.diagnosis.blame import blame_answer
from engine.figures.diagnosis.directions import direction_answer
from engine.figures.diagnosis.lens import lens_answer
from engine.figures.diagnosis.lost import lost_answer, lost_images, worst_task
from engine.figures.diagnosis.reading import reading_answer
from engine.figures.diagnosis.remedies import changed, effects, remedies_answer
from engine.figures.diagnosis.transplant import transplant_answer
from engine.figures.drawing import begun, expert_titles
from engine.figures.drawing import plain as drawn_as
from engine.figures.palette import Theme
from engine.pipeline.views.direction import TABLE
from pages.features.images import images_of
from pages.features.scatter import Atlas
from pages.forms import recipe as forms
from pages.sections.diagnose_views import QUESTIONS_WITH_VIEWS, at_hand, folder_of, question, request_of
from pages.shared.chrome import error_state, figure, plain, theme
from pages.shared.drawn import prepared, shared
from pages.shared.nouns import called, kind_of
from pages.shared.on_demand import draw_example
from pages.shared.one_of import one_of
from pages.shared.selection import choose
from pages.shared.state import RunView, samples

LABELS = {
    3: ("Verdict", "CKA", "L1"),
    4: ("Left out", "Joined"),
    5: ("Put back", "The other way round"),
}
SAYS = {
    3: "The verdict of each block, or the likeness of its output to the expert's.",
    4: "The merge without an expert, or the task's own expert with one more.",
    5: "The expert's parts in the merged model, or the merged model's parts in the expert.",
}


def answer_section(run: RunView, scope: Scope, number: int) -> None:
    """Draw one answer, or what stands in for it; a gesture in it draws this answer again and nothing else."""
    st.fragment(_section)(run, scope, number)


def answers_of(run: RunView, scope: Scope, shown: Theme) -> list[Answer]:
    """Return the answers that are there, for a report."""
    found = []
    for number in (1, *QUESTIONS_WITH_VIEWS):
        folder = run.folder if number == 1 else at_hand(run, scope, number)
        if folder is not None:
            try:
                found.append(_answer(run, scope, number, folder, shown))
            except EngineError:
                continue
    return found


def _section(run: RunView, scope: Scope, number: int) -> None:
    with st.container(border=True, key=f"answer-{number}"):
        try:
            _draw(run, scope, number)
        except EngineError as error:
            st.subheader(f"{number} · {question(run, number)}", anchor=False)
            error_state(error)


def _draw(run: RunView, scope: Scope, number: int) -> None:
    said, drawn = st.columns((2, 3), gap="large")
    with said:
        st.subheader(f"{number} · {question(run, number)}", anchor=False)
        folder = folder_of(run, scope, number) if number in QUESTIONS_WITH_VIEWS else run.folder
    if folder is None:
        with drawn:
            request = request_of(run, number, scope.task)
            draw_example(run, QUESTIONS_WITH_VIEWS[number], request, partial(_example, number))
        return
    answer = _answer(run, scope, number, folder, theme())
    with said:
        kind = kind_of(run.report)
        st.write(plain(called(answer.sentence, kind)))
        for note in answer.notes:
            st.write(plain(called(note, kind)))
        st.caption(plain(called(answer.control, kind)))
        if number == 7:
            _use(run, scope, folder)
    with drawn:
        drawings = answer.captioned
        if number in LABELS and len(drawings) == len(LABELS[number]):
            drawings = drawings[_which(number) :][:1]
        for drawing, caption in drawings:
            figure(
                drawing,
                key=f"diagnose.{number}.{drawing.name}",
                run=run,
                unit=caption.unit,
                tasks=[scope.task],
                count=caption.count,
                pick=_class_of(run, scope) if number == 1 else None,
            )


def _example(number: int, run: RunView, folder: Path) -> None:
    """Draw the first picture of an example's answer about its worst task."""
    scope = Scope.of(run.report, worst_task(run.report))
    answer = _answer(run, scope, number, folder, theme())
    for drawing, caption in answer.captioned[:1]:
        said = {"unit": caption.unit, "count": caption.count}
        figure(drawing, key=f"example.{number}", run=run, tasks=[scope.task], **said)


def _which(number: int) -> int:
    """Let one of an answer's pictures be chosen; returns its number."""
    shown = one_of(
        "Picture",
        list(LABELS[number]),
        default=LABELS[number][0],
        key=f"diagnose.{number}.picture",
        label_visibility="collapsed",
        help=SAYS[number],
    )
    return LABELS[number].index(shown)


def _class_of(run: RunView, scope: Scope) -> Callable[[dict], bool]:
    """Return what a click on a class's bar does: that class is selected."""
    classes = {drawn_as(name): number for number, name in enumerate(scope.classes)}

    def pick(point: dict) -> bool:
        label = classes.get(point.get("y"))
        if label is None:
            return False
        choose(run.report, scope.task, label)
        return True

    return pick


def _answer(run: RunView, scope: Scope, number: int, folder: Path, shown: Theme) -> Answer:
    """Return one answer; the same for everybody who asks, but for the one with pictures, which may come later.

    Raises:
        EngineError: it cannot be given for these images.
    """
    if number == 6:
        one, truth = _telling(run, scope)
        document = QUESTIONS_WITH_VIEWS[number].read(folder)
        if "texts" in document["tasks"][scope.task]:
            return reading_answer(document, scope, shown, one, truth)
        pictures = _pictures(run, scope, shown_images(document, scope, one))
        return attention_answer(document, scope, shown, pictures, one, truth)

    def make() -> Answer:
        answer = _without_pictures(run, scope, number, folder, shown)
        for drawing in answer.drawings:
            prepared(run, drawing)
        return answer

    return shared(run, ("answer", number, str(folder), astuple(scope), shown), make)


def _without_pictures(run: RunView, scope: Scope, number: int, folder: Path, shown: Theme) -> Answer:
    report = run.report
    if number == 1:
        return lost_answer(samples(run), report, scope, shown)
    document = QUESTIONS_WITH_VIEWS[number].read(folder)
    titles = _titles(run)
    if number == 2:
        return direction_answer(_table(str(folder), run.stamp), document, scope, shown)
    if number == 3:
        return lens_answer(document, report, scope, shown)
    if number == 4:
        return blame_answer(document, scope, titles, shown)
    if number == 5:
        return transplant_answer(document, scope, titles, shown)
    return remedies_answer(document, report, scope, titles, shown)


def _titles(run: RunView) -> dict[str, str]:
    experts = run.report.experts
    return dict(zip(experts, expert_titles(run.report, experts), strict=True))


def _telling(run: RunView, scope: Scope) -> tuple[int | None, str]:
    """Return the image to show alone, and its class: the first lost one of the scope, else its first."""
    table = lost_images(samples(run), scope, ("expert", "merged"))
    if table.empty or not {"expert", "merged"} <= set(table):
        return None, ""
    lost = table[(table["expert"] == table["label"]) & (table["merged"] != table["label"])]
    row = (lost if len(lost) else table).iloc[0]
    said = scope.class_name(int(row["label"]))
    if row["merged"] != row["label"]:
        said += f" → {scope.class_name(int(row['merged']))}"
    return int(row["index"]), said


def _pictures(run: RunView, scope: Scope, rows: list[int]) -> np.ndarray | None:
    """Return small pictures of some images of the task, uint8 (n, side, side, 3); None where they are not at hand."""
    images = _Images(f"diagnose:{scope.task}:{hash(tuple(rows))}", (scope.task,), np.asarray(rows))
    atlas = images_of(images, run.report)
    return np.asarray(atlas.images) if isinstance(atlas, Atlas) else None


class _Images:
    """Images of one task."""

    def __init__(self, key: str, tasks: tuple[str, ...], index: np.ndarray) -> None:
        self.key, self.tasks, self.index = key, tasks, index

    @property
    def task(self) -> np.ndarray:
        """Return the number of each image's task: zeros (n,)."""
        return np.zeros(len(self.index), dtype=int)

    def __len__(self) -> int:
        return len(self.index)


def _use(run: RunView, scope: Scope, folder: Path) -> None:
    """Let a remedy be put into the Lab's recipe."""
    document = QUESTIONS_WITH_VIEWS[7].read(folder)
    found = effects(document, run.report, scope, _titles(run))
    offered = {effect.title: effect for effect in found if effect.change is not None and effect.kind != "random_layers"}
    known = [effect.title for effect in found if effect.change is None]
    if known:
        st.caption(plain(f"In this run's recipe already: {', '.join(known)}."))
    if not offered:
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        title = st.selectbox(
            "Remedy",
            list(offered),
            key=f"diagnose.remedy.{scope.task}",
            bind="query-params",
            format_func=begun,
            width=240,
            help="A change of the recipe that was tried here.",
        )
        if st.button(
            "Put it into the recipe",
            key=f"diagnose.use.{scope.task}",
            icon=":material/tune:",
            help="The Lab's form gets this run's recipe with the change; nothing is run.",
        ):
            forms.load(changed(run.report.recipe, offered[title]))
            st.switch_page("pages/lab.py")


@st.cache_resource(max_entries=8, show_spinner=False)
def _table(folder: str, stamp: str) -> pd.DataFrame:
    return pd.read_parquet(Path(folder) / TABLE)
