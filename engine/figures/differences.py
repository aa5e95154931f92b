"""Differences between the recipes of several runs, and differences in measurement that forbid a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_origin

import pandas as pd

from ..catalog.titles import ROWS, calibrator_title, method_title, params_in_effect
from ..catalog.words import choice_title
from ..recipe import CalibratorCall, Forward, MethodCall
from ..report import Report
from ..sweeps.places import OTHERS
from .compare import Compared, tasks_of
from .drawing import task_titles

NAMED = 3  # tasks that a warning names one by one
EVALUATED: dict[Forward, str] = {"standard": "by the ordinary encoder", "linearised": "linearised"}


@dataclass(frozen=True)
class Setting:
    """A setting of a recipe as people read it."""

    title: str
    text: str


def recipe_differences(runs: Sequence[Compared]) -> pd.DataFrame:
    """Return settings that differ: a row each, columns setting (its title) and the runs' letters, "–" where absent.

    A calibrator or transform that only some runs have is one row with all its parameters.
    """
    calls = [_calls(run.report) for run in runs]
    fields = [_settings(run.report) for run in runs]
    for name in dict.fromkeys(name for found in calls for name in found):
        everywhere = all(name in found for found in calls)
        for flat, found in zip(fields, calls, strict=True):
            if name in found:
                call, title = found[name], _titled(name, found[name])
                each = _flat(name, call, title, f"{title}: ")
                flat |= each if everywhere else {name: Setting(title, _line(call))}
    rows = []
    for key in dict.fromkeys(key for flat in fields for key in flat):
        found = [flat.get(key) for flat in fields]
        values = ["–" if setting is None else setting.text for setting in found]
        if len(set(values)) > 1:
            rows.append([next(setting.title for setting in found if setting), *values])
    return pd.DataFrame(rows, columns=["setting", *(run.letter for run in runs)])


def measurement_warnings(runs: Sequence[Compared]) -> list[str]:
    """Return sentences on what keeps the runs from being comparable; none if they were measured alike."""
    checks = (
        (
            "zoos",
            lambda r: f"{r.zoo.title or r.zoo.name} ({r.zoo.digest[:8]})",
            "Tasks of one name may hold other images.",
        ),
        (
            "protocols",
            lambda r: r.protocol.replace("_", "-"),
            "Under the paper protocol calibrators adapt on the very images that are scored.",
        ),
        ("split seeds", lambda r: str(r.split_seed), "The scored images are not the same ones."),
        ("numbers of training seeds", lambda r: str(len(r.seeds)), "Accuracies are means over them."),
    )
    found = []
    for what, value, meaning in checks:
        values = [(run.letter, value(run.report)) for run in runs]
        if len({text for _, text in values}) > 1:
            found.append(f"Different {what}: {_by_value(values)}. {meaning}")
    return [*found, *_task_warnings(runs), *_count_warnings(runs)]


def _settings(report: Report) -> dict[str, Setting]:
    """Return the settings of a recipe beside transforms and calibrators; experts with weights other than 1."""
    recipe = report.recipe
    weights = {} if recipe.experts == "all" else {expert.name: expert.weight for expert in recipe.experts}
    chosen = weights or dict.fromkeys(report.experts, 1.0)
    experts = [name if weight == 1 else f"{weight:g} × {name}" for name, weight in chosen.items()]
    probe = {f"probe.{name}": value for name, value in recipe.probe.model_dump(mode="json").items()}
    return {
        "zoo": Setting("Zoo", report.zoo.title or report.zoo.name),
        "experts": Setting("Experts", ", ".join(experts) or "none"),
        **_flat("merge", recipe.merge, "Merge method", ""),
        "forward": Setting("Evaluated", EVALUATED[recipe.forward]),
        **{place: Setting(OTHERS.get(place, place), choice_title(_text(value))) for place, value in probe.items()},
        "seeds": Setting("Training seeds", _text(list(recipe.seeds))),
    }


def _calls(report: Report) -> dict[str, MethodCall]:
    """Return the transforms by their place and calibrators by their name."""
    transforms = {f"transforms.{place}": call for place, call in enumerate(report.recipe.transforms, 1)}
    return transforms | {f"calibrators.{call.name}": call for call in report.recipe.calibrators}


def _titled(place: str, call: MethodCall) -> str:
    """Return the title of a transform, by its place, or of a calibrator, by its name."""
    if isinstance(call, CalibratorCall):
        return calibrator_title(call.name, call.method)
    return f"Transform {place.rpartition('.')[2]}"


def _flat(place: str, call: MethodCall, title: str, owner: str) -> dict[str, Setting]:
    """Return a call's method and parameters, each under a key of its own.

    Args:
        place: of the call in the recipe.
        call: the method with its parameters.
        title: of the method's own row.
        owner: stands before the parameters' titles.
    """
    found = {f"{place}.method": Setting(title, method_title(call.method))}
    if isinstance(call, CalibratorCall):
        found[f"{place}.on"] = Setting(f"{owner}repairs", call.on)
    for name, value in params_in_effect(call).items():
        known = _parameter(call, name, value)
        found[f"{place}.{name}"] = Setting(f"{owner}{known.title}", known.text)
    return found


def _parameter(call: MethodCall, name: str, value: Any) -> Setting:
    """Return a parameter with its title, its name in words where this version knows no such parameter."""
    field = ROWS[call.method].params.model_fields.get(name) if call.method in ROWS else None
    chosen = field is not None and get_origin(field.annotation) is Literal
    return Setting((field and field.title) or name.replace("_", " "), choice_title(value) if chosen else _text(value))


def _line(call: MethodCall) -> str:
    known = (_parameter(call, name, value) for name, value in params_in_effect(call).items())
    return ", ".join([method_title(call.method), *(f"{setting.title} {setting.text}" for setting in known)])


def _text(value: Any) -> str:
    """Return a setting as it is shown."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items()) or "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _task_warnings(runs: Sequence[Compared]) -> list[str]:
    """Warn where averages are over other tasks, or tasks in other roles."""
    found, titles = [], _titles(runs)
    groups: dict[str, list[str]] = {}
    for task in tasks_of(runs):
        having = [run.letter for run in runs if task in run.report.tasks]
        if len(having) < len(runs):
            groups.setdefault(", ".join(having), []).append(titles[task])
    if groups:
        texts = [f"{_some(tasks)} only in {letters}" for letters, tasks in groups.items()]
        found.append(f"Different tasks: {'; '.join(texts)}. Averages are over each run's own tasks.")
    moved = [
        titles[task]
        for task in tasks_of(runs)
        if len({run.report.tasks[task].domain for run in runs if task in run.report.tasks}) > 1
    ]
    if moved:
        found.append(f"In-domain in one run, out-of-domain in another: {_some(moved)}.")
    return found


def _count_warnings(runs: Sequence[Compared]) -> list[str]:
    """Warn where other numbers of images were scored or adapted on."""
    found, titles = [], _titles(runs)
    for field, what in (("evaluate", "scored"), ("adapt", "adapted on")):
        texts = []
        for task in tasks_of(runs):
            having = [run for run in runs if task in run.report.samples]
            values = [(run.letter, f"{getattr(run.report.samples[task], field):,}") for run in having]
            if len({text for _, text in values}) > 1:
                texts.append(f"{titles[task]} {_by_value(values)}")
        if texts:
            found.append(f"Different numbers of images {what}: {_some(texts, '; ')}.")
    return found


def _titles(runs: Sequence[Compared]) -> dict[str, str]:
    """Return the title of every task that any run has."""
    tasks = {task: found for run in reversed(runs) for task, found in run.report.tasks.items()}
    return task_titles(runs[0].report.model_copy(update={"tasks": tasks}))


def _by_value(values: Sequence[tuple[str, str]]) -> str:
    """Return the letters grouped by what they have: ``held-out (A, C), paper (B)``."""
    groups = {text: [letter for letter, other in values if other == text] for _, text in values}
    return ", ".join(f"{text} ({', '.join(letters)})" for text, letters in groups.items())


def _some(texts: Sequence[str], between: str = ", ") -> str:
    more = len(texts) - NAMED
    return between.join(texts[:NAMED]) + (f" and {more} more" if more > 0 else "")
