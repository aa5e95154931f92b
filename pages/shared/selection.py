"""The task, class and images that pages speak of: one selection, in the address and in the session."""

from collections.abc import Iterable, Sequence

import streamlit as st

from engine.figures.diagnosis.answer import Scope
from engine.figures.diagnosis.lost import scored_tasks, worst_task
from engine.figures.drawing import task_titles
from engine.report import Report
from pages.shared.following import key_with, last_key

TASK, CLASS, IMAGES = "task", "class", "images"  # address parameters
SELECTION = "selection"  # in the session: task, label, images
BY_SOMEBODY = "selection.chosen"  # in the session: somebody chose it; else it is the task that loses most
MOVED = "selection.moved"  # in the session, for one run of the page
ALL = "all"  # of the tasks
MOST = 300  # images that an address names
DIAGNOSE = "pages/diagnose.py"


def selection(report: Report) -> Scope | None:
    """Return what is selected: by the address, else in this session, else the task that loses most.

    Returns:
        None where the report scores no task by both an expert and the merged model.
    """
    worst = worst_task(report)
    if worst is None:
        return None
    asked = _in_address(report)
    if asked is None:
        task, label, images = st.session_state.get(SELECTION, (worst, None, ()))
        known = task in scored_tasks(report) and (label is None or label < len(report.tasks[task].classes))
        asked = (task, label, images) if known else (worst, None, ())
    elif asked != st.session_state.get(SELECTION):
        st.session_state[BY_SOMEBODY] = True
    _keep(report, *asked)
    return Scope.of(report, *asked)


def choose(report: Report, task: str, label: int | None = None, images: Iterable[int] = ()) -> None:
    """Select a task, and a class or some images of it, in this session and in the address, as somebody asked for."""
    st.session_state[BY_SOMEBODY] = True
    _keep(report, task, label, images)


def chosen_task(report: Report) -> str | None:
    """Return the task that somebody has chosen, by the address or on any page; None where nobody has.

    An address goes with its page, so what it names is kept in the session; what it names wrongly is said and dropped.
    """
    asked = st.query_params.get(TASK)
    if asked in report.tasks:
        choose(report, *((asked in scored_tasks(report) and _in_address(report)) or (asked,)))
        return asked
    if asked is not None:
        st.toast(f"The address names the task '{asked[:80]}', which this run does not have.")
        _forget_address()
    task, label, images = st.session_state.get(SELECTION, (None, None, ()))
    if not st.session_state.get(BY_SOMEBODY) or task not in report.tasks:
        return None
    known = label is None or label < len(report.tasks[task].classes)
    _keep(report, task, *((label, images) if known else ()))
    return task


def task_choice(
    report: Report,
    tasks: Sequence[str],
    *,
    key: str,
    help: str,
    label: str = "Task",
    whole: str = "",
    width: int = 260,
) -> str:
    """Draw a list of tasks that shows the one that every page speaks of, and makes another that one.

    Args:
        report: of the run shown.
        tasks: that can be chosen here.
        key: of the widget.
        help: what is shown of the task.
        label: of the list.
        whole: title of all tasks together, where they can be chosen too; then nothing less is shown until somebody
            chooses a task, and choosing them forgets it again.
        width: in pixels.

    Returns:
        The task, or :data:`ALL`.
    """
    titles = {ALL: whole} if whole else {}
    titles |= task_titles(report, tasks)
    task = chosen_task(report) or (None if whole else worst_task(report))
    own = key_with(key, task if task in titles else next(iter(titles)))
    found = st.selectbox(
        label,
        list(titles),
        format_func=titles.__getitem__,
        key=own,
        width=width,
        on_change=_choose_in,
        args=(report, key, own),
        help=help,
    )
    if st.session_state.pop(MOVED, False):
        st.rerun()  # the whole page: whatever else of it speaks of a task
    return found


def _choose_in(report: Report, listed: str, key: str) -> None:
    if key != last_key(listed):
        return
    st.session_state[MOVED] = True
    if st.session_state[key] == ALL:
        for name in (SELECTION, BY_SOMEBODY):
            st.session_state.pop(name, None)
        _forget_address()
    else:
        choose(report, st.session_state[key])


def _forget_address() -> None:
    for name in (TASK, CLASS, IMAGES):
        st.query_params.pop(name, None)


def _keep(report: Report, task: str, label: int | None = None, images: Iterable[int] = ()) -> None:
    picked = tuple(sorted(set(images)))[:MOST]
    st.session_state[SELECTION] = (task, label, picked)
    wanted = query(report, task, label, picked)
    for name in (TASK, CLASS, IMAGES):
        if name in wanted and st.query_params.get(name) != wanted[name]:
            st.query_params[name] = wanted[name]
        elif name not in wanted and name in st.query_params:
            st.query_params.pop(name)


def query(report: Report, task: str, label: int | None = None, images: Sequence[int] = ()) -> dict[str, str]:
    """Return the address parameters of a selection."""
    found = {TASK: task}
    if label is not None:
        found[CLASS] = report.tasks[task].classes[label]
    if images:
        found[IMAGES] = ",".join(map(str, images[:MOST]))
    return found


def _in_address(report: Report) -> tuple[str, int | None, tuple[int, ...]] | None:
    """Return what the address selects; None where it selects nothing that the report has."""
    task = st.query_params.get(TASK)
    if task is None:
        return None
    if task not in report.tasks_of("in"):
        st.toast(f"The address names the task '{task[:80]}', which this run has no expert of. Another one is shown.")
        return None
    if task not in scored_tasks(report):
        st.toast(f"The address names the task '{task}', which has no accuracy to lose. Another one is shown.")
        return None
    classes, name = list(report.tasks[task].classes), st.query_params.get(CLASS)
    if name is not None and name not in classes:
        st.toast(f"The address names the class '{name[:80]}', which this task does not have. All classes are shown.")
    label = classes.index(name) if name in classes else None
    texts = [text for text in st.query_params.get(IMAGES, "").split(",") if text]
    if not all(text.isdecimal() and len(text) < 10 for text in texts):
        st.toast("The address names images by something else than numbers, so none is chosen.")
        texts = []
    return task, label, tuple(sorted({int(text) for text in texts}))[:MOST]
