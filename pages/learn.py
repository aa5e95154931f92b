"""Learn: lessons in short steps, each with a prediction before what was measured."""

from pathlib import Path

import streamlit as st

from engine.errors import EngineError
from engine.lessons import Lesson, lesson_names, own_folder, own_lessons, read_lesson
from pages.sections.lesson_numbers import choose_run, numbers_of_lesson
from pages.sections.lesson_steps import draw_step
from pages.shared.chrome import error_state, plain
from pages.shared.state import RunView, store

LESSON, STEP, CLASS = "lesson", "step", "class"  # address parameters: which lesson, which step, shown to a class
CLASSROOM = """
[data-testid=stMain] {zoom: 1.3;}
[data-testid=stMainBlockContainer] {padding: 0.5rem 2rem;}
[data-testid=stMain] [data-testid=stVerticalBlock] {gap: 0.5rem;}
[data-testid=stMain] h1 {padding: 0 0 0.5rem;}
[data-testid=stHeader], [data-testid=stSidebar] {display: none;}
[data-testid=stElementContainer]:has([data-testid=stPlotlyChart]) {zoom: calc(1 / 1.3);}
[data-testid=stLayoutWrapper]:has(> [data-testid=stHorizontalBlock] > .st-key-filmcolour) {order: 1;}
"""  # Plotly's figures measure the screen and would leave the page; what a film shows is chosen below it


def main() -> None:
    """Draw the lessons, or one step of one of them."""
    names, asked = lesson_names(), st.query_params.get(LESSON)
    own = {path.stem: path for path in _own() if path.stem not in names}
    if asked in names:
        _lesson(read_lesson(asked))
    elif asked in own:
        _opened(own[asked])
    else:
        _all(names)


def _all(names: list[str]) -> None:
    st.title("Learn", anchor=False)
    st.write(
        "Each lesson takes about ten minutes. You predict, then you see what was measured on the bundled zoo: nothing "
        "is staged, and some of it is not what the papers say."
    )
    for number, name in enumerate(names, 1):
        _card(read_lesson(name), str(number))
    if own := _own():
        st.subheader("Your own lessons", anchor=False)
        for path in own:
            _own_card(path, taken=path.stem in names)


def _card(lesson: Lesson, number: str = "") -> None:
    title = f"{number}. {plain(lesson.title)}" if number else plain(lesson.title)
    with st.container(border=True, key=f"learn.card.{lesson.name}"):
        with st.container(horizontal=True, wrap=False, vertical_alignment="center"):
            st.markdown(f"**{title}** :gray[· {len(lesson.steps)} steps]", width="stretch")
            st.button("Start", key=f"learn.start.{lesson.name}", on_click=_go, args=(lesson.name, 1))
        st.write(plain(lesson.summary))
        st.caption(plain(lesson.paper))


def _own() -> list[Path]:
    """Return the files of the reader's own lessons."""
    return own_lessons(own_folder(store().root))


def _own_card(path: Path, *, taken: bool) -> None:
    try:
        lesson = read_lesson(path)
        if taken or lesson.name != path.stem:
            raise EngineError(
                f"The lesson {path.name} needs a name of its own, the same in the file and of the file: it says "
                f"'{lesson.name}'."
            )
    except EngineError as error:
        error_state(error, f"`python -m engine lesson check {path.name}` names the lines.")
        return
    _card(lesson)


def _opened(path: Path) -> None:
    try:
        lesson = read_lesson(path)
    except EngineError as error:
        error_state(error, f"`python -m engine lesson check {path.name}` names the lines.")
        return
    _lesson(lesson.model_copy(update={"name": path.stem}))


def _go(lesson: str | None, step: int = 1) -> None:
    if lesson is None:
        for name in (LESSON, STEP, CLASS):
            st.query_params.pop(name, None)
        return
    st.query_params[LESSON] = lesson
    st.query_params[STEP] = str(step)


def _lesson(lesson: Lesson) -> None:
    number = _step_number(lesson)
    _classroom()
    _top(lesson, number)
    try:
        run = choose_run(lesson)
        numbers = numbers_of_lesson(lesson, run)
    except EngineError as error:
        error_state(error, "The lesson needs the example runs that come with the app.")
        return
    st.title(plain(numbers.fill(lesson.steps[number - 1].title)), anchor=False)
    answered = draw_step(lesson, number, run, numbers, figure_first=_in_class())
    _bottom(lesson, number, run, answered)


def _step_number(lesson: Lesson) -> int:
    text = st.query_params.get(STEP, "1")
    known = text.isdecimal() and len(text) < 10  # int() takes neither ² nor thousands of digits
    return min(max(int(text) if known else 1, 1), len(lesson.steps))


def _in_class() -> bool:
    """Return whether the address asks for a lesson to be shown to a class."""
    return st.query_params.get(CLASS) == "1"


def _classroom() -> None:
    """Set large type without navigation and sidebar, for a class, where the address asks for it."""
    if _in_class():
        st.html(f"<style>{CLASSROOM}</style>")


def _top(lesson: Lesson, number: int) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "All lessons", icon=":material/arrow_back:", key="learn.back", type="tertiary", on_click=_go, args=(None,)
        )
        st.caption(f"{plain(lesson.title)} · step {number} of {len(lesson.steps)}", width="stretch")
        st.toggle(
            "Classroom",
            value=_in_class(),
            key="learn.class",
            on_change=_switch_classroom,
            help="Large type, the figure first and no navigation, to be shown to a class. The keys N and B step on "
            "and back.",
        )
    st.progress(number / len(lesson.steps))


def _switch_classroom() -> None:
    if st.session_state["learn.class"]:
        st.query_params[CLASS] = "1"
    else:
        st.query_params.pop(CLASS, None)


def _bottom(lesson: Lesson, number: int, run: RunView, answered: bool) -> None:
    last = number == len(lesson.steps)
    with st.container(horizontal=True, horizontal_alignment="distribute"):
        st.button(
            "Back",
            key="learn.previous",
            icon=":material/chevron_left:",
            disabled=number == 1,
            on_click=_go,
            args=(lesson.name, number - 1),
            shortcut="B",
        )
        if last:
            if st.button("Open this run in the Lab", key="learn.lab", type="primary", icon=":material/science:"):
                st.switch_page("pages/lab.py", query_params={"run": run.id})
        else:
            st.button(
                "Next",
                key="learn.next",
                icon=":material/chevron_right:",
                icon_position="right",
                type="primary",
                on_click=_go,
                args=(lesson.name, number + 1),
                shortcut="N",
                help=None if answered else "You may go on without an answer.",
            )


main()
