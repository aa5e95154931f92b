"""The numbers of a lesson: of the example that comes with the app, or of a run on the reader's own zoo."""

from collections.abc import Sequence

import streamlit as st

from engine.errors import EngineError
from engine.experiments.claims import fits
from engine.lessons import Lesson, Numbers, Step, quoted, read_networks, shipped_results, source_of
from engine.lessons.numbers import RUN
from engine.recipe import Recipe, parse_recipe
from pages.shared.chrome import plain
from pages.shared.results import results
from pages.shared.service import ask
from pages.shared.state import RunView, open_run, run_title, store

ON = "on"  # the address parameter: the run whose numbers are shown
LOOKED_THROUGH = 50  # finished runs
NAMED = 3  # missing numbers that are named


def choose_run(lesson: Lesson) -> RunView:
    """Draw the choice between the example and the reader's own runs of the same recipe, where there are any.

    Raises:
        EngineError: the lesson's example is not there.
    """
    example = open_run(lesson.run)
    own = _own_runs(example)
    if not own:
        return example
    titles = {lesson.run: f"{example.report.zoo.title or example.report.zoo.name} (comes with the app)", **own}
    chosen = st.selectbox(
        "Numbers of",
        list(titles),
        format_func=titles.get,
        key=ON,
        bind="query-params",
        help="Runs of yours that merge as this lesson's example does. Experiments are those that ran on the same zoo.",
    )
    return example if chosen in (None, lesson.run) else open_run(chosen)


def numbers_of_lesson(lesson: Lesson, run: RunView) -> Numbers:
    """Return what was measured for a lesson on the zoo of a run."""
    if run.example:
        return Numbers(run.report, shipped_results(quoted(lesson)))
    found = {}
    for name in quoted(lesson):
        try:
            networks, spec = read_networks(name), source_of(name)
        except EngineError:
            continue
        if networks is not None:
            found[name] = networks.result
            continue
        for result, _ in results(spec):
            if result.zoo_digest == run.report.zoo.digest and fits(spec, result):
                found.setdefault(name, result)  # a quick one stands behind
    return Numbers(run.report, found)


def say_missing(step: Step, run: RunView, numbers: Numbers) -> None:
    """Say in a sentence which numbers of a step were not measured, and offer to measure them on one's own zoo."""
    missing = numbers.missing(step)
    if step.figure in ("points", "findings", "path") and step.experiment not in numbers.results:
        missing.append(f"{step.experiment}.")
    if not missing:
        return
    experiments = sorted({place.split(".")[0] for place in missing} - {RUN})
    parts = []
    if experiments:
        command = f"python -m engine experiment {experiments[0]}" + ("" if run.example else f" --zoo {_zoo(run)}")
        parts.append(
            f"Not measured yet on this zoo: {_listed(experiments)} (`{command}` does); a dash stands for a number."
        )
    if lacks := [place for place in missing if place.startswith(f"{RUN}.")]:
        parts.append(f"This run has no {_listed(lacks[:NAMED])}; a dash stands for a number.")
    st.caption(f":orange[:material/hourglass_empty:] {' '.join(parts)}")
    if experiments and not run.example:
        _offer(experiments, run)


def _offer(experiments: Sequence[str], run: RunView) -> None:
    if st.button(
        "Measure it on this zoo",
        key="learn.measure",
        icon=":material/play_arrow:",
        help="The quick form: fewer images, shorter training, one seed. Its progress is on the page Experiments.",
    ):
        try:
            for name in experiments:
                ask("experiment", {"name": name, "zoo": _zoo(run), "quick": True}, source_of(name).title)
        except EngineError as error:
            st.error(plain(error), icon=":material/error:")
            return
        st.toast("Asked for. Come back to this step when it has finished.")


def _own_runs(example: RunView) -> dict[str, str]:
    """Return own finished runs of other zoos that merge as an example does: titles by id, newest first."""
    found = {}
    for row in store().runs.list(kinds=("run",), states=("finished",), children=False, limit=LOOKED_THROUGH):
        try:
            recipe = parse_recipe(row.request.get("recipe"))
        except EngineError:
            continue
        if recipe.zoo != example.report.recipe.zoo and _way(recipe) == _way(example.report.recipe):
            found[row.id] = f"{recipe.zoo}: {run_title(row)}"
    return found


def _way(recipe: Recipe) -> tuple[str, ...]:
    return recipe.merge.method, *(call.method for call in recipe.transforms)


def _zoo(run: RunView) -> str:
    return run.report.recipe.zoo


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(plain, names))
