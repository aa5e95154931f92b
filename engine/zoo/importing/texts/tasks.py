"""The task of a text expert: its classes, answers or grades, its classifier, and its texts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....errors import DataError, ZooError
from ....manifest import Task
from ....rounding import spelled
from ...texts.families import ANSWERS, Family
from ...texts.grades import MOST, graded_head, grades_between
from ...texts.tables import TextTable
from ..found import Row
from ..sources import Source
from .classes import class_names, described_classes
from .found import TextSurvey, TextTask
from .models import Classifier, TextModel

NAMED = 3
# Measures of GLUE's tasks that are not accuracy. Source: Wang et al., ICLR 2019, arXiv:1804.07461, Table 1.
PUBLISHED_MEASURES = {"cola": "matthews", "mrpc": "f1", "qqp": "f1"}


def task_of(found: TextSurvey, row: Row, model: TextModel, source: Source) -> TextTask:
    """Return the task of an expert: classes of its config or of the data, its classifier, and its texts.

    Raises:
        EngineError: texts that cannot be read, or that do not fit the classifier.
    """
    family, place = found.family, found.request.data.get(row.task, "")
    table = _table(row.task, place, family) if place else None
    classifier, entry = model.classifier, {"name": row.task, "domain": "in", "classes": []}
    if family.answers:
        return _in_words(found, row.task, place, table, entry)
    if classifier is None:
        if table is not None:
            raise ZooError(
                f"Expert '{row.name}' has no classifier ({family.classifier}), so the texts of '{row.task}' cannot be "
                "scored. Choose the fine-tuned model with its classifier, or leave the texts out."
            )
        row.notes.append("no classifier: it is merged and not scored")
        return TextTask(row.task, entry)
    count = len(classifier.weight)
    if count == 1:
        return _number(found, row, classifier, table, entry, place)
    if source.config.get("problem_type") in ("regression", "multi_label_classification"):
        if table is not None:
            raise ZooError(
                f"Expert '{row.name}' gives several labels or numbers for a text; one of them is scored here. Leave "
                "its texts out: it is merged all the same."
            )
        row.notes.append("no classifier of one class a text: it is merged and not scored")
        return TextTask(row.task, entry)
    if table is not None and table.span is not None:
        raise DataError(
            f"The texts of '{row.task}' have numbers from {table.span[0]:g} to {table.span[1]:g} as labels; the "
            f"classifier of '{row.name}' says one of {count} classes. Choose the texts that it was tuned on."
        )
    classes = _classes(found, row, source, table, count, place)
    row.notes.append(f"a classifier of {count} classes: {', '.join(classes[:4])}{' …' if count > 4 else ''}")
    entry["classes"] = classes
    if (measure := PUBLISHED_MEASURES.get(re.sub(r"[^a-z0-9]", "", row.task.lower()))) is not None:
        entry["measure"] = measure
        row.notes.append(f"published with {measure}, as GLUE has it")
    Task.model_validate(entry)
    return TextTask(row.task, entry, classifier, table)


def task_outside(found: TextSurvey, task: str) -> TextTask:
    """Return a task that no expert was tuned on: its answers are ranked as those of the others, out of domain.

    Args:
        found: of a family that ranks answers.
        task: named in the request's data.

    Raises:
        EngineError: texts that cannot be read, or without names for their answers.
    """
    place = found.request.data[task]
    entry = {"name": task, "domain": "out", "classes": []}
    return _in_words(found, task, place, _table(task, place, found.family), entry)


def _classes(found: TextSurvey, row: Row, source: Source, table: TextTable | None, count: int, place: str) -> list[str]:
    """Return the names of a classifier's classes: given ones, else those beside the texts, of its config, of the data.

    Raises:
        DataError: they are not as many as its classes.
    """
    given = found.request.prompts.get(row.task)
    brought = table.brought if table is not None else ()
    classes = list(given.classes) if given and given.classes else class_names(source.config, place, brought, count)
    if len(classes) != count:
        raise DataError(
            f"The classifier of '{row.name}' has {count} classes; {len(classes)} are named: "
            f"{', '.join(classes[:NAMED])} …. Give as many names, in the classifier's order."
        )
    return classes


def _number(
    found: TextSurvey, row: Row, classifier: Classifier, table: TextTable | None, entry: dict[str, Any], place: str
) -> TextTask:
    """Return the task of an expert that gives a number: grades of the data, or those that were stated.

    Raises:
        DataError: labels that are no numbers.
    """
    given = found.request.prompts.get(row.task)
    grades = given.grades if given else ()
    if not grades and table is None:
        row.notes.append("it gives a number for a text, and no texts say on which scale: it is merged and not scored")
        return TextTask(row.task, entry)
    if not grades and table is not None:
        grades = _grades(table, row.task, MOST)
    entry |= {"classes": list(spelled(grades)), "grades": list(grades), "measure": _correlation(row.task)}
    row.notes.append(f"it gives a number: {len(grades)} grades from {grades[0]:g} to {grades[-1]:g} round it")
    weight, bias = graded_head(classifier.weight, classifier.bias, grades)
    head = dataclasses.replace(classifier, weight=weight, bias=bias)
    return TextTask(row.task, entry, head, _table(row.task, place, found.family, grades) if table else None)


def _grades(table: TextTable, task: str, most: int) -> tuple[float, ...]:
    """Return grades over the range of the labels.

    Raises:
        DataError: the labels are names.
    """
    span = table.span
    if span is None and not table.brought:
        labels = [label for split in table.lengths for label in (table.labels(split) if table.labelled(split) else ())]
        span = (float(min(labels)), float(max(labels))) if labels else None
    if span is None:
        raise DataError(
            f"The expert of '{task}' gives a number for a text; its texts have {', '.join(table.brought[:3])} … as "
            "labels. Choose texts with numbers."
        )
    return grades_between(*span, most)


def _correlation(task: str) -> str:
    return "spearman" if re.sub(r"[^a-z0-9]", "", task.lower()) in ("stsb", "gluestsb") else "pearson"


def _in_words(found: TextSurvey, task: str, place: str, table: TextTable | None, entry: dict[str, Any]) -> TextTask:
    """Return a task whose answers are words, or numbers in words."""
    family, given = found.family, found.request.prompts.get(task)
    grades = given.grades if given else ()
    if not grades and table is not None and table.span is not None and not (given and given.classes):
        grades = _grades(table, task, ANSWERS)
    if grades:
        table = _table(task, place, family, grades) if table is not None else None
        entry |= {"classes": list(spelled(grades)), "grades": list(grades), "measure": _correlation(task)}
    else:
        entry["classes"] = _answers(task, place, table, family, given.classes if given else ())
    return TextTask(task, entry, None, table)


def _answers(task: str, place: str, table: TextTable | None, family: Family, given: Sequence[str]) -> list[str]:
    """Return the answers of a task whose classes are ranked.

    Raises:
        DataError: none are named, or more than can be ranked.
    """
    classes = list(given) or described_classes(place) or (list(table.brought) if table else [])
    if table is not None and not classes:
        raise DataError(
            f"The texts of '{task}' have numbers as labels. {family.title} ranks answers in words: give the answers as "
            f"labels, or list them as `class_names` in {Path(place).stem}.json beside the texts."
        )
    if len(classes) > ANSWERS:
        raise DataError(
            f"Task '{task}' has {len(classes)} answers; {family.title} ranks at most {ANSWERS}. Leave its texts out: "
            "the expert is merged all the same."
        )
    return classes


def _table(task: str, place: str, family: Family, grades: Sequence[float] = ()) -> TextTable:
    if not family.scored:
        raise ZooError(
            f"{family.title} is merged and exported; texts are not scored with it. Leave the data of '{task}' out."
        )
    try:
        return TextTable(Path(place).expanduser(), grades=grades)
    except DataError as error:
        raise DataError(f"Task '{task}': {error}") from error
