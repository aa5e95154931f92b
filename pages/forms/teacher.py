"""The teacher of experts that are to learn from another model, in the form of a training."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.manifest import Manifest, Task, bundled_zoos
from engine.pipeline.zoos.request import Teacher
from pages.forms.params import seeded
from pages.shared.chrome import plain
from pages.shared.state import store
from pages.shared.zoos import zoo_manifest

PREFIX = "train.teacher"
ASKED = f"{PREFIX}.asked"  # whether there is to be one


def teacher_fields(zoo: str, manifest: Manifest, chosen: Sequence[str]) -> tuple[dict[str, Any] | None, str]:
    """Draw the choice of a teacher.

    Args:
        zoo: name or folder of the student's.
        manifest: of the student's zoo.
        chosen: the tasks to teach.

    Returns:
        The teacher as a request names it, None without one; and why nobody can teach, '' where somebody can.
    """
    st.toggle(
        "Learn from a teacher",
        key=seeded(ASKED, False),
        help="Distillation: experts match another model's predictions on the training samples, and the labels. "
        "The model may be of another architecture.",
    )
    if not st.session_state[ASKED] or not chosen:
        return None, ""
    students = [manifest.task_table[name] for name in chosen]
    places = _places(zoo, manifest, students)
    if not places:
        classes = "the classes of this task" if len(students) == 1 else "tasks of these names and classes"
        return None, f"No zoo at hand has {classes}. Add the teacher's zoo under Bring your own, or choose fewer tasks."
    key = f"{PREFIX}.zoo.{zoo}"
    if st.session_state.get(key) not in places:  # it has no head for a task that was added
        st.session_state.pop(key, None)
    with st.grid("auto", min_column_width=150, gap="small"):
        place = st.selectbox(
            "Teacher's zoo",
            list(places),
            format_func=lambda place: plain(places[place].name),
            key=seeded(key, next(iter(places))),
            help=_hint("zoo"),
        )
        theirs = places[place]
        names = [_same(theirs, student, alone=len(students) == 1) for student in students]
        models = _models(theirs, names)
        model = st.selectbox(
            "Teacher",
            models,
            format_func=plain,
            key=seeded(f"{PREFIX}.model.{place}.{names[0]}.{len(names)}", models[0]),
            help=_hint("model"),
        )
        temperature = st.number_input(
            "Temperature T", 0.1, 100.0, key=seeded(f"{PREFIX}.temperature", 2.0), help=_hint("temperature")
        )
        weight = st.number_input("Weight", 0.0, 1.0, key=seeded(f"{PREFIX}.weight", 0.9), help=_hint("weight"))
    task = names[0] if names != list(chosen) else ""
    if task:
        st.caption(plain(f"The teacher's task of these classes is called {theirs.task_table[task].label}."))
    return {"zoo": place, "model": model, "task": task, "temperature": temperature, "weight": weight}, ""


def _places(zoo: str, manifest: Manifest, students: Sequence[Task]) -> dict[str, Manifest]:
    """Return the zoos with heads for all tasks, this one last."""
    found = {}
    for place in dict.fromkeys([*map(str, store().zoos.list()), *bundled_zoos(), zoo]):
        with suppress(EngineError, OSError):
            theirs = zoo_manifest(place)
            alike = theirs.modality == manifest.modality and theirs.heads is not None
            if alike and all(_same(theirs, student, alone=len(students) == 1) for student in students):
                found[place] = theirs
    if zoo in found:
        found[zoo] = found.pop(zoo)
    return found


def _same(theirs: Manifest, student: Task, alone: bool) -> str:
    """Return the task with the student's classes: of its name, or of another if one task is taught; '' without one."""
    same = [task.name for task in theirs.tasks if set(task.classes) == set(student.classes)]
    if student.name in same:
        return student.name
    return same[0] if same and alone else ""


def _models(theirs: Manifest, tasks: Sequence[str]) -> list[str]:
    """Return the models that may teach tasks of a zoo, its experts of them first."""
    own = [expert.name for expert in theirs.experts if expert.task in tasks]
    others = [expert.name for expert in theirs.experts if expert.task not in tasks]
    references = [reference.name for reference in theirs.references]
    return [*own, *references, *others, "base"] if len(tasks) == 1 else [*references, *own, *others, "base"]


def _hint(name: str) -> str:
    return Teacher.model_fields[name].description or ""
