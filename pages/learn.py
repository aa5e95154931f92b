"""Learn: lessons in short steps, each with a prediction before what was measured."""

from pathlib import Path

import streamlit as st

from engine.errors import EngineError
from engine.experiments import ExperimentResult, read_experiment, read_result
from engine.experiments.spec import FOLDER as EXPERIMENTS
from engine.figures import accuracy_bars, bias_bars, salience_heatmap
from engine.figures.experiment import experiment_dots
from engine.lessons import Lesson, Numbers, Prediction, Step, lesson_names, read_lesson
from engine.rounding import rounded
from pages.features.view import feature_view
from pages.shared.chrome import empty_state, error_state, figure, numbers_of, plain, plot, theme
from pages.shared.state import RunView, open_run

LESSON, STEP, CLASS = "lesson", "step", "class"  # address parameters: which lesson, which step, shown to a class
ANSWERS = "learn.answers"  # in the session: (lesson, step) → number of the option chosen


def main() -> None:
    """Draw the lessons, or one step of one of them."""
    names = lesson_names()
    asked = st.query_params.get(LESSON)
    if asked in names:
        _lesson(read_lesson(asked))
    else:
        _all(names)


def _all(names: list[str]) -> None:
    st.title("Learn", anchor=False)
    st.write(
        "Each lesson takes about ten minutes. You predict, then you see what was measured on the bundled zoo: nothing "
        "is staged, and some of it is not what the papers say."
    )
    for number, name in enumerate(names, 1):
        lesson = read_lesson(name)
        with st.container(border=True, key=f"learn.card.{name}"):
            with st.container(horizontal=True, wrap=False, vertical_alignment="center"):
                st.markdown(f"**{number}. {plain(lesson.title)}** :gray[· {len(lesson.steps)} steps]", width="stretch")
                st.button("Start", key=f"learn.start.{name}", on_click=_go, args=(name, 1))
            st.write(plain(lesson.summary))
            st.caption(plain(lesson.paper))


def _go(lesson: str | None, step: int = 1) -> None:
    if lesson is None:
        for name in (LESSON, STEP, CLASS):
            st.query_params.pop(name, None)
        return
    st.query_params[LESSON] = lesson
    st.query_params[STEP] = str(step)


def _lesson(lesson: Lesson) -> None:
    number = _step_number(lesson)
    step = lesson.steps[number - 1]
    classroom = _classroom()
    _top(lesson, number)
    try:
        run = open_run(lesson.run)
        numbers = Numbers(run.report, {name: found for name in _named(lesson) if (found := _result(name))})
    except EngineError as error:
        error_state(error, "The lesson needs the example runs that come with the app.")
        return
    st.title(plain(step.title), anchor=False)
    wide = _page(lesson, number, step, run, numbers)
    _bottom(lesson, number, classroom, wide)


def _step_number(lesson: Lesson) -> int:
    text = st.query_params.get(STEP, "1")
    return min(max(int(text) if text.isdigit() else 1, 1), len(lesson.steps))


def _classroom() -> bool:
    """Set large type without a sidebar, for a class, where the address asks for it."""
    on = st.query_params.get(CLASS) == "1"
    if on:
        st.html("<style>[data-testid=stMain] {zoom: 1.3;}</style>")
    return on


def _top(lesson: Lesson, number: int) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "All lessons", icon=":material/arrow_back:", key="learn.back", type="tertiary", on_click=_go, args=(None,)
        )
        st.caption(f"{plain(lesson.title)} · step {number} of {len(lesson.steps)}", width="stretch")
        st.toggle(
            "Classroom",
            value=st.query_params.get(CLASS) == "1",
            key="learn.class",
            on_change=_switch_classroom,
            help="Large type, to be shown to a class. The keys N and B step on and back.",
        )
    st.progress(number / len(lesson.steps))


def _switch_classroom() -> None:
    if st.session_state["learn.class"]:
        st.query_params[CLASS] = "1"
    else:
        st.query_params.pop(CLASS, None)


def _page(lesson: Lesson, number: int, step: Step, run: RunView, numbers: Numbers) -> bool:
    """Draw text, equation, prediction, control and figure of a step; returns whether its answer is known."""
    try:
        st.markdown(numbers.fill(step.text))
        if step.equation:
            st.latex(numbers.fill(step.equation))
            st.caption(plain(numbers.fill(step.equation_says)))
        answered = step.predict is None or _predict(lesson, number, step.predict, numbers)
        if not answered:
            return False
        if step.after:
            st.markdown(numbers.fill(step.after))
        if step.control:
            _control(lesson, number, step, numbers)
        _figure(lesson, number, step, run, numbers)
    except EngineError as error:
        error_state(error, "Run the experiments of the app again to fill it in.")
    return True


def _predict(lesson: Lesson, number: int, asked: Prediction, numbers: Numbers) -> bool:
    """Draw the question, and once it is answered what was measured; returns whether it is answered."""
    right = numbers.answer(asked)
    answers = st.session_state.setdefault(ANSWERS, {})
    place = (lesson.name, number)
    options = range(len(asked.options))
    with st.container(border=True, key="learn.prediction"):
        st.markdown(f"**Your prediction.** {numbers.fill(asked.question)}")
        chosen = st.pills(
            "Your prediction",
            options,
            format_func=lambda option: asked.options[option],
            default=answers.get(place),
            key=f"learn.answer.{lesson.name}.{number}",
            label_visibility="collapsed",
            help="Predict first; the measured answer appears beside yours.",
        )
        if chosen is None:
            st.caption("Choose one; then the measured answer appears.")
            answers.pop(place, None)
            return False
        answers[place] = chosen
        if chosen == right:
            st.success(
                f"You said **{plain(asked.options[chosen])}**, and so it is. {numbers.fill(asked.because)}",
                icon=":material/check:",
            )
        else:
            st.warning(
                f"You said **{plain(asked.options[chosen])}**; measured was **{plain(asked.options[right])}**. "
                f"{numbers.fill(asked.because)}",
                icon=":material/lightbulb:",
            )
    return True


def _control(lesson: Lesson, number: int, step: Step, numbers: Numbers) -> None:
    """Draw one setting with its presets; each is a run that was measured."""
    control = step.control
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
    spec = read_experiment(control.experiment)
    titles = {measure.name: measure for measure in spec.measures}
    with st.grid("auto", min_column_width=150, gap="small"):
        for name in control.measures:
            place = f"{control.experiment}.{{}}.{name}"
            value = numbers.value(place.format(control.presets[chosen].point))
            first = numbers.value(place.format(control.presets[control.start].point))
            measure = titles[name]
            digits = 1 if measure.unit == "%" else 0 if value >= 100 else 2
            unit = "\u00a0%" if measure.unit == "%" else ""
            change = None if chosen == control.start else rounded(value - first, digits, signed=True, grouped=True)
            st.metric(
                measure.title,
                f"{rounded(value, digits, grouped=True)}{unit}",
                change,
                height="stretch",
                delta_color="off" if measure.unit != "%" else "normal",
            )
    _points_caption(numbers.results[control.experiment])


def _figure(lesson: Lesson, number: int, step: Step, run: RunView, numbers: Numbers) -> None:
    key = f"learn.figure.{lesson.name}.{number}"
    report = run.report
    if step.figure == "accuracy":
        figure(accuracy_bars(report, theme()), key=key, run=run, unit="Accuracy in percent")
    elif step.figure == "bias":
        figure(bias_bars(report, "l1", theme()), key=key, run=run, unit="L1 distance to the expert's features")
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
    elif step.figure == "points":
        _points(step, numbers, key)


def _points(step: Step, numbers: Numbers, key: str) -> None:
    result = numbers.results.get(step.experiment)
    if result is None:
        empty_state("Not measured", "The experiment that this step shows has not been run.")
        return
    spec = read_experiment(step.experiment)
    measure = next(measure for measure in spec.measures if measure.name == step.measure)
    drawing = experiment_dots(spec, result, measure, theme())
    plot(drawing, key=key)
    _points_caption(result)
    numbers_of(drawing, key, result.name)


def _points_caption(result: ExperimentResult) -> None:
    low, high = result.images or (0, 0)
    images = f"{low:,}" if low == high else f"{low:,}–{high:,}"
    st.caption(
        plain(
            f"Experiment {result.name} on the zoo {result.zoo}; n = {images} test images a task; split seed "
            f"{result.split_seed}; means over training seeds. Hollow marks are controls."
        )
    )


def _bottom(lesson: Lesson, number: int, classroom: bool, answered: bool) -> None:
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
                st.switch_page("pages/lab.py", query_params={"run": lesson.run})
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


def _named(lesson: Lesson) -> list[str]:
    """Return experiments that a lesson may ask for: all that were run."""
    return [path.stem for path in sorted(EXPERIMENTS.glob("*.json"))]


@st.cache_resource(max_entries=64, show_spinner=False)
def _read(path: str, modified: int) -> ExperimentResult | None:
    try:
        return read_result(Path(path))
    except EngineError:
        return None


def _result(name: str) -> ExperimentResult | None:
    path = EXPERIMENTS / f"{name}.json"
    return _read(str(path), path.stat().st_mtime_ns)


main()
