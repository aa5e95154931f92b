"""The check of a lesson's file before anybody reads it: what is wrong, in which line, and how it will read."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ..catalog import resolve
from ..errors import EngineError, RecipeError, nearest
from ..experiments import Experiment
from ..manifest import ASSETS
from ..recipe import explain_item, read_yaml
from ..report import Report, read_report
from ..sweeps.frames import EXPERTS, SEED
from ..sweeps.places import numbered, places
from .measured import quoted, shipped_results, source_names, source_of
from .numbers import PLACE, RUN, Numbers, digits_of
from .spec import FOLDER, Control, Lesson, Prediction, Step

EXAMPLES = ASSETS / "examples"
BRACES = re.compile(r"\{[^{}]*\}")
MEANT = re.compile(r"\{-?[a-z][a-z0-9_-]*\.[^{}]*\}")  # in an equation, where braces are LaTeX's too
Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """Something about a lesson: a fault, or a number that is still to be measured."""

    line: int  # from 1; 0 where it is about the file
    where: str  # such as "step 3, predict, because"
    text: str
    fault: bool = True

    def __str__(self) -> str:
        line = f"line {self.line}" if self.line else "the file"
        return f"{'Fault' if self.fault else 'Note '}  {line}{f', {self.where}' if self.where else ''}: {self.text}"


def check_lesson(path: Path) -> tuple[Lesson | None, list[Problem]]:
    """Read a lesson's file and look up everything that it names.

    Returns:
        The lesson, None where it cannot be read; what is wrong, and what has not been measured yet, by line.
    """
    try:
        document = read_yaml(path, RecipeError, "lesson")
    except RecipeError as error:
        return None, [_unreadable(path, error)]
    lines = _Lines(path.read_text("utf-8"))
    try:
        lesson = Lesson.model_validate(document)
    except ValidationError as error:
        found = []
        for item in error.errors():
            place = _clean(item["loc"])
            found.append(Problem(lines.of(place), _words(place), explain_item(item, Lesson)))
        return None, sorted(dict.fromkeys(found), key=lambda problem: problem.line)
    found = [Problem(lines.of(place), _words(place), text, fault) for place, text, fault in _Check(path, lesson).all()]
    return lesson, sorted(found, key=lambda problem: problem.line)


class _Check:
    """Everything that a lesson names, looked up."""

    def __init__(self, path: Path, lesson: Lesson) -> None:
        self.path, self.lesson = path, lesson
        self.specs: dict[str, Experiment] = {}

    @cached_property
    def numbers(self) -> Numbers | None:
        report = _report(self.lesson.run)
        return Numbers(report, shipped_results(quoted(self.lesson))) if report else None

    def all(self) -> Iterator[tuple[Place, str, bool]]:
        """Yield places, what is to be said of them, and whether it is a fault."""
        yield from self._names()
        for number, step in enumerate(self.lesson.steps):
            for place, text in self._step(step):
                yield ("steps", number, *place), text, True
        if self.numbers is None:
            return
        for number, step in enumerate(self.lesson.steps):
            for place in self.numbers.missing(step):
                if self._fault_of(place) == "":
                    text = f"{place} has not been measured yet; the page says so and shows a dash."
                    yield ("steps", number), text, False

    def _names(self) -> Iterator[tuple[Place, str, bool]]:
        lesson = self.lesson
        bundled = [file.stem for file in FOLDER.glob("*.yaml")]
        inside = self.path.resolve().parent == FOLDER.resolve()
        if self.path.stem != lesson.name:
            yield (
                ("name",),
                f"'{lesson.name}' is not the file's name, {self.path.stem}: addresses would not find it.",
                True,
            )
        elif not inside and lesson.name in bundled:
            yield ("name",), f"'{lesson.name}' is a lesson that comes with the app: choose another name.", True
        for name in ("title", "summary"):
            if fault := _unfilled(getattr(lesson, name)):
                yield (name,), fault, True
        runs = sorted(folder.parent.name for folder in EXAMPLES.glob("*/report.json"))
        if runs and lesson.run not in runs:
            yield ("run",), f"There is no example '{lesson.run}'. {nearest(lesson.run, runs)}", True

    def _step(self, step: Step) -> Iterator[tuple[Place, str]]:
        yield from self._texts(step)
        if step.predict:
            yield from self._decides(step.predict)
        if step.experiment:
            yield from self._named(("experiment",), step.experiment, ("measure",), (step.measure,) * bool(step.measure))
        if step.control:
            yield from self._control(step.control)
        known = list(self.numbers.report.accuracy) if self.numbers else []
        for number, state in enumerate(step.states):
            if known and state not in known:
                text = f"The lesson's run scores no state '{state}'. {nearest(state, known)}"
                yield ("states", number), text

    def _texts(self, step: Step) -> Iterator[tuple[Place, str]]:
        for place, text in step.texts():
            for braces in (MEANT if place == ("equation",) else BRACES).findall(text):
                match = PLACE.fullmatch(braces)
                fault = self._fault_of(match.group(2)) if match else _no_place(braces)
                if fault:
                    yield place, fault

    def _decides(self, asked: Prediction) -> Iterator[tuple[Place, str]]:
        for name, place in (("value", asked.value), ("minus", asked.minus)):
            if place and (fault := self._fault_of(place)):
                yield ("predict", name), fault
        for number, place in enumerate(asked.largest):
            if fault := self._fault_of(place):
                yield ("predict", "largest", number), fault

    def _control(self, control: Control) -> Iterator[tuple[Place, str]]:
        yield from self._named(("control", "experiment"), control.experiment, ("control", "measures"), control.measures)
        spec = self._spec(control.experiment)
        points = [point.name for point in spec.points] if spec else []
        if fault := _unfilled(control.label):
            yield ("control", "label"), fault
        for number, preset in enumerate(control.presets):
            if fault := _unfilled(preset.label):
                yield ("control", "presets", number, "label"), fault
            if points and preset.point not in points:
                text = f"{control.experiment} has no point '{preset.point}'. {nearest(preset.point, points)}"
                yield ("control", "presets", number, "point"), text
        if control.film and self.numbers:
            recipe = resolve(self.numbers.report.recipe)
            known = [EXPERTS, SEED, *(place.place for place in places(recipe))]
            if numbered(recipe, control.film) not in known:
                yield ("control", "film"), f"The run has no '{control.film}'. {nearest(control.film, known)}"

    def _named(
        self, at: Place, experiment: str, measured: Place, measures: Sequence[str]
    ) -> Iterator[tuple[Place, str]]:
        spec = self._spec(experiment)
        if spec is None:
            yield at, f"There is no experiment '{experiment}'. {nearest(experiment, source_names())}"
            return
        known = [measure.name for measure in spec.measures]
        for name in measures:
            if name not in known:
                yield measured, f"{experiment} does not measure '{name}'. {nearest(name, known)}"

    def _fault_of(self, place: str) -> str:
        """Return what is wrong with the place of a number; nothing where it is one."""
        head, _, rest = place.partition(".")
        if head == RUN:
            numbers = self.numbers
            return "" if numbers is None or numbers.known(place) else _lost(numbers.report, rest)
        spec = self._spec(head)
        if spec is None:
            return f"There is no experiment '{head}'. {nearest(head, [RUN, *source_names()])}"
        point, _, measure = rest.partition(".")
        points, measures = [one.name for one in spec.points], [one.name for one in spec.measures]
        if point not in points:
            return f"{head} has no point '{point}'. {nearest(point, points)}"
        if measure not in measures:
            return f"{place}: {head} does not measure '{measure}'. {nearest(measure, measures)}"
        return ""

    def _spec(self, name: str) -> Experiment | None:
        if name not in self.specs:
            try:
                self.specs[name] = source_of(name)
            except EngineError:
                return None
        return self.specs[name]


def shown(lesson: Lesson) -> str:
    """Return a lesson as its reader will see it, for the terminal, with the measured answers."""
    report = _report(lesson.run)
    specs: dict[str, Experiment] = {}
    names = quoted(lesson)
    for name in names:
        specs[name] = source_of(name)
    if report is None:
        return f"{lesson.title}\n{lesson.summary}\nThe example '{lesson.run}' is not here, so no numbers are shown."
    numbers = Numbers(report, shipped_results(names))
    lines = [lesson.title, lesson.summary, lesson.paper]
    for number, step in enumerate(lesson.steps, 1):
        lines += ["", f"{number}. {numbers.fill(step.title)}", *_step_lines(step, numbers, specs)]
    return "\n".join(lines)


def _step_lines(step: Step, numbers: Numbers, specs: dict[str, Experiment]) -> list[str]:
    lines = [numbers.fill(step.text)]
    if step.equation:
        lines += [f"   {numbers.fill(step.equation)}", f"   {numbers.fill(step.equation_says)}"]
    right = None
    if step.predict:
        asked = step.predict
        right = numbers.answer(asked) if numbers.decided(asked) else None
        lines.append(f"? {numbers.fill(asked.question)}")
        marked = [] if right is None else numbers.right(asked)
        lines += [
            f"  {'→' if number in marked else ' '} {numbers.fill(text)}" for number, text in enumerate(asked.options)
        ]
        lines.append("  Not measured yet." if right is None else f"  {numbers.fill(asked.because_of(right))}")
    if after := step.after_of(right):
        lines.append(numbers.fill(after))
    if step.control:
        lines += _control_lines(step.control, numbers, specs[step.control.experiment])
    if step.figure:
        lines.append(f"[figure: {' '.join(filter(None, (step.figure, step.experiment, step.measure, *step.states)))}]")
    return lines


def _control_lines(control: Control, numbers: Numbers, spec: Experiment) -> list[str]:
    film = f" (a film over {control.film} where there is one)" if control.film else ""
    table = {measure.name: measure for measure in spec.measures}
    lines = [f"{control.label}:{film}"]
    for preset in control.presets:
        cells = []
        for name in control.measures:
            place = f"{control.experiment}.{preset.point}.{name}"
            digits = digits_of(numbers.value(place), table[name].unit) if numbers.known(place) else 0
            cells.append(f"{table[name].title} {numbers.fill(f'{{{place}:{digits}}}')}")
        lines.append(f"   {preset.label}: {', '.join(cells)}")
    return lines


def changes(path: Path, pause: Callable[[float], Any] = time.sleep, every: float = 0.5) -> Iterator[None]:
    """Yield at once, and then whenever a file has been written again.

    Args:
        path: the file; while it is away it is waited for.
        pause: called between two looks.
        every: seconds between them.
    """
    last: tuple[int, int] | None = None
    while True:
        try:
            found = path.stat()
        except OSError:
            pause(every)
            continue
        stamp = (found.st_mtime_ns, found.st_size)
        if stamp == last:
            pause(every)
            continue
        last = stamp
        yield


def _report(run: str) -> Report | None:
    try:
        return read_report(EXAMPLES / run)
    except EngineError:
        return None


def _no_place(braces: str) -> str:
    return f"{braces} names no number: write {{experiment.point.measure}}, or {{run.…}} for the lesson's run."


def _unfilled(text: str) -> str:
    """Return what is wrong with a text that is shown as it is written; nothing where it names no number."""
    found = MEANT.search(text)
    return (
        f"{found[0]} is not filled in here: numbers stand in the texts of steps alone. Leave it out." if found else ""
    )


def _lost(report: Report, rest: str) -> str:
    """Say where the way to a number of the report ends, and the nearest key there."""
    found: Any = report.model_dump(mode="json", by_alias=True)
    way = RUN
    for part in rest.split("."):
        if not isinstance(found, dict) or part not in found:
            keys = list(found) if isinstance(found, dict) else []
            return f"{way} has no '{part}' in the report of the lesson's run. {nearest(part, keys)}"
        found, way = found[part], f"{way}.{part}"
    return f"{way} is no number in the report of the lesson's run."


def _clean(place: Sequence[str | int]) -> Place:
    """Leave out what pydantic adds for the members of a union."""
    return tuple(part for part in place if isinstance(part, int) or not (part == "str" or part.startswith("tuple[")))


def _words(place: Place) -> str:
    """Return a place for people: steps count from 1."""
    parts = [str(part + 1) if isinstance(part, int) else part for part in place]
    if len(parts) > 1 and parts[0] == "steps":
        parts[:2] = [f"step {parts[1]}"]
    return ", ".join(parts)


def _unreadable(path: Path, error: RecipeError) -> Problem:
    """Return why a file is not even YAML, with the line where its reader stopped."""
    try:
        if "not valid YAML" in str(error):
            yaml.compose(path.read_text("utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as marked:
        if marked.problem_mark is not None:
            return Problem(marked.problem_mark.line + 1, "", f"This is not YAML: {marked.problem}.")
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        pass
    return Problem(0, "", str(error))


class _Lines:
    """Lines of a YAML document's places."""

    def __init__(self, text: str) -> None:
        self._root = yaml.compose(text, Loader=yaml.SafeLoader)

    def of(self, place: Place) -> int:
        """Return the line, from 1, of a place, or of what is nearest around it."""
        node, line = self._root, 1
        for part in place:
            if isinstance(node, yaml.MappingNode):
                entry = next((pair for pair in node.value if pair[0].value == part), None)
                if entry is None:
                    break
                line, node = entry[0].start_mark.line + 1, entry[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line + 1
            else:
                break
        return line
