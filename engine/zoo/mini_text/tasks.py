"""The ten tasks of mini_text: seven that get an expert, three that only measure what merging forgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .grammars import (
    acceptability,
    emotion,
    entailment,
    intent,
    question,
    sentiment,
    setting,
    style,
    tense,
    topic,
)
from .grammars.common import Chance, Written

GENERATED = "written by grammars of MergeLens"
LICENCE = "Apache-2.0"


@dataclass(frozen=True)
class Task:
    """One classification task; ``write`` makes a sentence of a class at a hardness from 0 to 1."""

    name: str
    title: str
    in_domain: bool
    classes: tuple[str, ...]
    write: Callable[[Chance, int, float], Written]


TASKS = (
    Task("sentiment", "Reviews", True, sentiment.CLASSES, sentiment.write),
    Task("topic", "Headlines", True, topic.CLASSES, topic.write),
    Task("question", "Questions", True, question.CLASSES, question.write),
    Task("entailment", "What follows", True, entailment.CLASSES, entailment.write),
    Task("acceptability", "Learners' mistakes", True, acceptability.CLASSES, acceptability.write),
    Task("intent", "Requests", True, intent.CLASSES, intent.write),
    Task("emotion", "Diary lines", True, emotion.CLASSES, emotion.write),
    Task("tense", "When it happens", False, tense.CLASSES, tense.write),
    Task("setting", "Where it is", False, setting.CLASSES, setting.write),
    Task("style", "Kinds of text", False, style.CLASSES, style.write),
)
IN_DOMAIN = tuple(task for task in TASKS if task.in_domain)
OUT_OF_DOMAIN = tuple(task for task in TASKS if not task.in_domain)
