"""Accuracy over the pruning ratio: a sweep in the background, with controls of equal norm beside it."""

from typing import Any

import streamlit as st

from engine.catalog import resolve
from engine.errors import EngineError
from engine.experiments import ExperimentResult, read_result
from engine.experiments.spec import FOLDER
from engine.figures.pruning import pruning_curves
from engine.figures.sweep import MEASURES
from engine.pipeline.preflight.sweep import SweepEstimate, estimate_sweep
from engine.recipe import parse_recipe
from engine.sweeps import SweepRequest, SweepTable
from pages.sections.sweep_table import table_of
from pages.shared.chrome import duration, figure, plain, theme
from pages.shared.on_demand import latest, on_demand
from pages.shared.one_of import one_of
from pages.shared.state import RunView, store
from pages.shared.tables import draw_table

PRUNING = "lwptv"
METHODS = (PRUNING, "equal_norm", "random_layers")  # what is judged, then its controls
ETAS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SHIPPED = "lwptv-accuracy"  # the experiment that has the same controls, and more
SHORT = {"ta": "nothing", "ta_lwptv": "LwPTV"}
WHAT = (
    "A merged model that moves less from the pretrained one is better out of domain in any case. So beside LwPTV stand "
    "two controls that move exactly as far without choosing layers: all of the merged task vector made shorter, which "
    "is a smaller λ, and layers drawn at random. Where the lines lie together, it is the length that matters."
)


def pruning_request(run: RunView) -> SweepRequest:
    """Return a sweep of the run's merge over transform and η; without calibrators, with the first seed.

    Raises:
        EngineError: its merge method takes no transform, or this version does not know its recipe.
    """
    document: dict[str, Any] = resolve(run.report.recipe).model_dump(mode="json")
    others = [call for call in document["transforms"] if call["method"] not in METHODS]
    recipe = parse_recipe(
        {
            **document,
            "transforms": [{"method": PRUNING}, *others],
            "calibrators": [],
            "seeds": document["seeds"][:1],
        }
    )
    listed = [
        {"place": "transforms.0.method", "values": list(METHODS)},
        {"place": "transforms.0.params.eta", "values": list(ETAS)},
    ]
    request = SweepRequest.parse({"recipe": resolve(recipe).model_dump(mode="json"), "settings": listed})
    request.points()
    return request


def pruning_sweep(run: RunView, eta: float | None) -> None:
    """Draw the sweep of this run, or the button that starts it; below it what was measured before on the same zoo.

    Args:
        run: the run shown.
        eta: the pruning ratio that the run used, if it did.
    """
    if not run.report.average:
        return
    st.subheader("What that does to accuracy", anchor=False)
    st.write(WHAT)
    try:
        _measured(run, pruning_request(run), eta)
    except EngineError as error:
        st.info(f"This run cannot be measured over η. {plain(error)}", icon=":material/info:")
    _shipped(run)


def _measured(run: RunView, request: SweepRequest, eta: float | None) -> None:
    """Draw the curves, or what they would cost and the button that asks for them."""
    document = request.model_dump(mode="json")
    row = latest("sweep", document)
    if row is None:
        cost = _cost(request.model_dump_json(), request)
        st.caption(
            f":material/timer: {cost.runs} merges without calibrators, about {duration(cost.seconds)}; they are "
            "computed in the background and kept under Sweep."
        )
    folder = on_demand(
        None,
        "sweep",
        document,
        key="salience.sweep",
        name=f"LwPTV and controls over η, {run.title}",
        label="Measure accuracy over η",
        icon=":material/add_chart:",
    )
    table = table_of(row) if row is not None else None
    if table is not None and any(point.evaluation for point in table.points):
        if folder is None:
            st.caption(f"{len(table.points)} of {request.count()} merges are there.")
        _curves(run, table, eta)


def _curves(run: RunView, table: SweepTable, eta: float | None) -> None:
    measure = one_of(
        "Accuracy",
        list(MEASURES),
        format_func=lambda name: MEASURES[name][0],
        default="h_score",
        key="salience.measure",
        persist_state="session",
        help="Mean over in-domain tasks, over out-of-domain tasks, or their harmonic mean H.",
    )
    figure(
        pruning_curves(table, measure, theme(), eta),
        key=f"salience.sweep.{measure}",
        run=run,
        images=False,
        unit=MEASURES[measure][1],
        note=table.measured_on(),
    )


def _shipped(run: RunView) -> None:
    """Draw Task Arithmetic with LwPTV and all controls, as measured for the app on the same zoo."""
    result = _result(SHIPPED)
    if result is None or result.zoo != run.report.zoo.name:
        return
    lines = []
    for point in result.points:
        cells = [point.cells.get(name) for name in ("accuracy", "out", "h")]
        if (point.control or point.name in ("ta", "ta_lwptv")) and all(cells):
            names = ("In-domain (%)", "Out-of-domain (%)", "H-score (%)")
            lines.append(
                {"Task Arithmetic, λ 0.3, with": SHORT.get(point.name, point.title)}
                | {name: cell.mean for name, cell in zip(names, cells, strict=True)}
            )
    with st.expander("Measured before on this zoo, with more controls", key="salience.shipped"):
        numbers = {name: st.column_config.NumberColumn(format="%.1f") for name in list(lines[0])[1:]} if lines else {}
        draw_table(lines, hide_index=True, column_config=numbers, key="salience.controls", height="content")
        st.caption(
            plain(
                f"Experiment {result.name}: {result.verdict}. {result.reason} Split seed {result.split_seed}; merges "
                "do not depend on training seeds, random ones are means over them."
            )
        )


@st.cache_data(max_entries=16, ttl="2m", show_spinner=False)
def _cost(document: str, _request: SweepRequest) -> SweepEstimate:
    return estimate_sweep(_request, store())


@st.cache_resource(max_entries=2, show_spinner=False)
def _result(name: str) -> ExperimentResult | None:
    try:
        return read_result(FOLDER / f"{name}.json")
    except EngineError:
        return None
