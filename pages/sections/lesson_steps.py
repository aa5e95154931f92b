"""A step of a lesson: its text, its prediction, what may be moved, and its figure."""

from contextlib import nullcontext

import streamlit as st

from engine.catalog import CALIBRATORS
from engine.errors import EngineError
from engine.experiments import ExperimentResult
from engine.figures import accuracy_bars, bias_bars, salience_heatmap
from engine.figures.connection import connection_figure
from engine.figures.experiment import experiment_dots
from engine.lessons import Control, Lesson, Numbers, Prediction, Step, digits_of, read_networks, source_of, sources
from engine.lessons.numbers import RUN
from engine.rounding import rounded
from engine.sweeps import numbered
from engine.zoo.modalities import MODALITIES
from pages.features.film_view import FilmEntry, film_view, films_of
from pages.features.view import feature_view
from pages.forms.recipes import named
from pages.sections.experiment_findings import findings
from pages.sections.lesson_numbers import say_missing
from pages.sections.premerging_measures import draw_disentanglement
from pages.sections.premerging_scaling import MOST, draw_scaling, recipes_of
from pages.shared.chrome import error_state, figure, numbers_of, plain, plot, provenance, theme
from pages.shared.drawn import drawn
from pages.shared.state import RunView

OF_RUN = ("accuracy", "bias", "salience", "features", "scaling", "disentanglement")  # figures that say their run
ANSWERS = "learn.answers"  # in the session: (lesson, step) → number of the option chosen


def draw_step(lesson: Lesson, number: int, run: RunView, numbers: Numbers, *, figure_first: bool = False) -> bool:
    """Draw text, equation, prediction, control and figure of a step.

    Args:
        lesson: the lesson.
        number: of the step, from 1.
        run: that the lesson is about.
        numbers: what was measured.
        figure_first: control and figure stand above the text, once they may be seen.

    Returns:
        Whether the answer of the step's prediction is known.
    """
    step, above = lesson.steps[number - 1], st.container() if figure_first else nullcontext()
    try:
        st.markdown(numbers.fill(step.text))
        if step.equation:
            st.latex(numbers.fill(step.equation))
            st.caption(plain(numbers.fill(step.equation_says)))
        answered = step.predict is None or _predict(lesson, number, step.predict, numbers)
        if not answered:
            return False
        right = numbers.answer(step.predict) if step.predict and numbers.decided(step.predict) else None
        if after := step.after_of(right):
            st.markdown(numbers.fill(after))
        with above:
            if step.control:
                _control(lesson, number, step, step.control, run, numbers)
            _figure(lesson, number, step, run, numbers)
        _sources(step, run, numbers)
        say_missing(step, run, numbers)
    except EngineError as error:
        error_state(error, "`python -m engine lesson check` says more of a lesson of your own.")
    return True


def _predict(lesson: Lesson, number: int, asked: Prediction, numbers: Numbers) -> bool:
    """Draw the question, and once it is answered what was measured; returns whether it is answered."""
    answers = st.session_state.setdefault(ANSWERS, {})
    place = (lesson.name, number)
    options = range(len(asked.options))
    decided = numbers.decided(asked)
    with st.container(border=True, key="learn.prediction"):
        st.markdown(f"**Your prediction.** {numbers.fill(asked.question)}")
        chosen = st.pills(
            "Your prediction",
            options,
            format_func=lambda option: numbers.fill(asked.options[option]),
            default=answers.get(place),
            key=f"learn.answer.{lesson.name}.{number}",
            label_visibility="collapsed",
            help="Predict first; the measured answer appears beside yours.",
        )
        if chosen is None:
            answers.pop(place, None)
            st.caption("Choose one; then the measured answer appears.")
            return False
        answers[place] = chosen
        said = plain(numbers.fill(asked.options[chosen]))
        if not decided:
            st.info(
                f"You said **{said}**. The answer has not been measured here yet.",
                icon=":material/hourglass_empty:",
            )
            return True
        right = numbers.right(asked)
        because = numbers.fill(asked.because_of(right[0]))
        if len(right) > 1:
            because += f" The options {_listed(right, asked, numbers)} differ by less than {asked.near:g}."
        if chosen in right:
            st.success(f"You said **{said}**, and so it is. {because}", icon=":material/check:")
        else:
            best = plain(numbers.fill(asked.options[right[0]]))
            st.warning(f"You said **{said}**; measured was **{best}**. {because}", icon=":material/lightbulb:")
    return True


def _film(control: Control, run: RunView) -> FilmEntry | None:
    """Return the run's film over a control's setting, where it has one."""
    place = numbered(run.report.recipe, control.film)
    return next((entry for entry in films_of(run) if entry.place == place), None) if control.film else None


def _sources(step: Step, run: RunView, numbers: Numbers) -> None:
    """Say what those numbers of a step are of whose source neither its figure nor its control says."""
    said = {step.experiment, RUN if step.figure in OF_RUN else ""}
    if step.control and not _film(step.control, run):
        said.add(step.control.experiment)
    for name in sources(step):
        if name in said:
            continue
        if name == RUN:
            st.caption(plain(f"{_calibrated(run)} {provenance(run, 'Numbers of the run')}.".strip()))
        elif name in numbers.results:
            _points_caption(numbers.results[name])


def _calibrated(run: RunView) -> str:
    """Return a run's calibrators with their first settings, in a sentence; '' where it has none."""
    calls = [call for call in run.report.recipe.calibrators if call.method in CALIBRATORS]
    return f"{', '.join(named(call, CALIBRATORS, first=True) for call in calls)}." if calls else ""


def _listed(chosen: list[int], asked: Prediction, numbers: Numbers) -> str:
    return " and ".join(f"*{plain(numbers.fill(asked.options[number]))}*" for number in chosen)


def _control(lesson: Lesson, number: int, step: Step, control: Control, run: RunView, numbers: Numbers) -> None:
    """Draw one setting: a film over it where the run has one, else presets of which each is a run that was measured."""
    film = _film(control, run)
    if film is not None:
        film_view(run, [film], f"learn.film.{lesson.name}.{number}")
        return
    presets = range(len(control.presets))
    chosen = st.select_slider(
        control.label,
        presets,
        value=control.start,
        format_func=lambda at: control.presets[at].label,
        key=f"learn.control.{lesson.name}.{number}",
        bind="query-params",
        help="Every preset is a run that was measured; nothing is computed here.",
    )
    titles = {measure.name: measure for measure in source_of(control.experiment).measures}
    with st.grid("auto", min_column_width=150, gap="small"):
        for name in control.measures:
            measure, places = titles[name], [f"{control.experiment}.{at.point}.{name}" for at in control.presets]
            if not numbers.known(places[chosen]):
                st.metric(measure.title, "–", height="stretch")
                continue
            value = numbers.value(places[chosen])
            first = numbers.value(places[control.start]) if numbers.known(places[control.start]) else None
            digits = digits_of(value, measure.unit)
            unit = f"\u00a0{measure.unit}" if measure.unit in ("%", "nats") else ""
            moved = first is not None and chosen != control.start
            st.metric(
                measure.title,
                f"{rounded(value, digits, grouped=True)}{unit}",
                rounded(value - first, digits, signed=True, grouped=True) if moved else None,
                height="stretch",
                delta_color="off" if measure.unit != "%" else "normal",
            )
    if control.experiment in numbers.results and control.experiment != step.experiment:  # whose figure says it
        _points_caption(numbers.results[control.experiment])


def _figure(lesson: Lesson, number: int, step: Step, run: RunView, numbers: Numbers) -> None:
    key = f"learn.figure.{lesson.name}.{number}"
    report, look = run.report, theme()
    if step.figure == "accuracy":
        shown = ("accuracy of states", look, *(step.states or ()))
        drawing = drawn(run, shown, lambda: accuracy_bars(report, look, step.states or None))
        figure(drawing, key=key, run=run, unit="Accuracy in percent", note=_calibrated(run))
    elif step.figure == "bias":
        drawing = drawn(run, ("bias", look), lambda: bias_bars(report, "l1", look))
        figure(drawing, key=key, run=run, unit="L1 distance to the expert's features", note=_calibrated(run))
    elif step.figure == "salience" and report.salience is not None:
        figure(
            salience_heatmap(report.salience, theme(), logarithmic=True),
            key=key,
            run=run,
            images=False,
            unit="Salience, mean |τ − mean τ|",
        )
    elif step.figure == "features":
        feature_view(run, key=key, compact=True)
    elif step.figure == "scaling":
        draw_scaling(run, tuple(recipes_of(run)), MOST, key)
    elif step.figure == "disentanglement" and len(report.experts) > 1:
        draw_disentanglement(run, (report.experts[0], report.experts[1]), key)
    elif step.figure in ("points", "findings"):
        _experiment(step, numbers, key)
    elif step.figure == "path":
        _path(step, numbers, key)


def _experiment(step: Step, numbers: Numbers, key: str) -> None:
    """Draw an experiment's points by one measure, or its clauses; what is missing is said below the step."""
    result, spec = numbers.results.get(step.experiment), source_of(step.experiment)
    if result is None:
        return
    if step.figure == "findings":
        st.markdown(f"**The claim.** {plain(spec.claim)} :gray[{plain(spec.paper)}, {plain(spec.part)}.]")
        findings(spec, result)
    else:
        measure = next(measure for measure in spec.measures if measure.name == step.measure)
        drawing = experiment_dots(spec, result, measure, theme())
        plot(drawing, key=key)
        numbers_of(drawing, key, result.name)
    _points_caption(result, dots=step.figure == "points")


def _path(step: Step, numbers: Numbers, key: str) -> None:
    """Draw the losses on the way from one network to another."""
    networks = read_networks(step.experiment)
    if networks is None or not networks.path:
        return
    drawing = connection_figure(networks.path, networks.ends, theme())
    plot(drawing, key=key)
    _points_caption(networks.result)
    numbers_of(drawing, key, networks.result.name)


def _points_caption(result: ExperimentResult, *, dots: bool = False) -> None:
    low, high = result.images or (0, 0)
    images, many = f"{low:,}" if low == high else f"{low:,}–{high:,}", MODALITIES[result.kind].many
    seeds = max((len(point.seeds) for point in result.points), default=0)
    updates = source_of(result.name).updates(quick=result.quick)
    trained = f"; calibrators after {' or '.join(f'{steps:,}' for steps in updates)} updates a task" if updates else ""
    st.caption(
        plain(
            f"Experiment {result.name} on {result.zoo}; n = {images} test {many} a task; split seed "
            f"{result.split_seed}; {f'means over up to {seeds} training seeds' if seeds > 1 else 'one training seed'}"
            f"{trained}{'; quick form' if result.quick else ''}." + (" Hollow marks are controls." if dots else "")
        )
    )
