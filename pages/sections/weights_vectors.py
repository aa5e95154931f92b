"""Sections of the weights page that look at task vectors: geometry, what a merge kept, spectra."""

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from engine.figures import COMPONENTS, layers_of
from engine.figures.drawing import expert_titles
from engine.figures.spectra import MERGED, RANKS, rank_figure, spectrum_figure
from engine.figures.weight_measures import GEOMETRY, KEPT, LayerMeasure
from engine.figures.weights import fate_bars, layer_figure, pair_matrix
from engine.pipeline.viewing.on_weights import Measured, read_measured
from engine.pipeline.views.geometry import GEOMETRY as TASK_VECTORS
from engine.pipeline.views.spectra import SPECTRA
from pages.shared.chrome import empty_state, figure, theme
from pages.shared.on_demand import view_on_demand
from pages.shared.one_of import one_of
from pages.shared.state import RunView

PAIRS = {"cosine": "Cosine", "conflict": "Sign conflict"}


def task_vectors(run: RunView) -> None:
    """Draw norms, angles and signs of the experts' task vectors."""
    st.write(
        "An expert's task vector τ is what fine-tuning added to the pretrained weights. Merging works on these: long "
        "ones dominate, aligned ones add up, and opposite signs cancel."
    )
    folder = _measured(run)
    if folder is None:
        return
    view = _read(str(folder), "geometry")
    titles = expert_titles(run.report, view.document["models"])
    measure = _choice(GEOMETRY, "weights.geometry")
    components = _components(view.document["layers"], "weights.components")
    figure(
        layer_figure(
            view.arrays, view.document["layers"], titles, measure, theme(), components=components, name="task-vectors"
        ),
        key="weights.layers",
        run=run,
        unit=f"{measure.title}: {measure.unit}",
        images=False,
    )
    if len(titles) > 1:
        _pairs(run, view, titles)


@st.fragment
def _pairs(run: RunView, view: Measured, titles: list[str]) -> None:
    """Draw experts against experts, over all layers or one of them."""
    st.subheader("Expert against expert", anchor=False)
    layers = layers_of(view.document["layers"])
    what, where = st.columns((1, 2), vertical_alignment="bottom")
    with what:
        chosen = one_of(
            "Show",
            list(PAIRS),
            format_func=PAIRS.__getitem__,
            default="cosine",
            key="weights.pairs",
            persist_state="session",
            help="The measure that is drawn for every layer or pair of experts.",
        )
    names = {"": "All layers together", **{layer.name: layer.short for layer in layers}}
    layer = where.selectbox(
        "In",
        list(names),
        format_func=names.__getitem__,
        key="weights.pairs.layer",
        bind="query-params",
        help="The part of the encoder that is compared. Blocks count from 1.",
    )
    rows = [view.document["layers"].index(layer)] if layer else []
    figure(
        pair_matrix(view.arrays, titles, chosen, theme(), rows),
        key="weights.matrix",
        run=run,
        unit=f"{PAIRS[chosen]}, {names[layer].lower()}",
        images=False,
    )
    st.write(
        "Cosine: 0 is unrelated, 1 the same direction."
        if chosen == "cosine"
        else "Percent of the entries that both experts move, in opposite directions; unrelated experts have 50."
    )


def what_was_kept(run: RunView) -> None:
    """Draw how much of every expert's task vector the merged model has."""
    st.write(
        "The merged vector m is what the merged model adds to the pretrained weights. Entry by entry it either moves "
        "the same way as an expert, not at all (trimmed, masked, pruned), or the other way."
    )
    folder = _measured(run)
    if folder is None:
        return
    view = _read(str(folder), "kept")
    titles = expert_titles(run.report, view.document["models"])
    figure(
        fate_bars(view.arrays, titles, theme()),
        key="weights.fate",
        run=run,
        unit="Percent of the entries that an expert moved, all layers",
        images=False,
    )
    st.subheader("Layer by layer", anchor=False)
    measure = _choice(KEPT, "weights.kept")
    components = _components(view.document["layers"], "weights.kept.components")
    figure(
        layer_figure(
            view.arrays, view.document["layers"], titles, measure, theme(), components=components, name="what-was-kept"
        ),
        key="weights.kept.layers",
        run=run,
        unit=f"{measure.title}: {measure.unit}",
        images=False,
        note="Compared with the experts' own task vectors, before any transform.",
    )
    if run.report.merged.kind == "per_task":
        st.caption("This merge has weights for every task; each expert is compared with those of its own task.")


def spectra(run: RunView) -> None:
    """Draw singular values of task matrices."""
    st.write(
        "A task matrix is the task vector of a weight matrix. Its singular values say how many directions "
        "fine-tuning really used: few large ones mean that a low-rank merge (TSV-M, Iso-C, KnOTS) loses little."
    )
    folder = view_on_demand(
        run,
        SPECTRA,
        SPECTRA.ask(run.report.recipe),
        key="weights.spectra",
        label="Compute the singular values",
        icon=":material/show_chart:",
        takes="Seconds for small encoders; about two minutes for eight experts of ViT-B/32 on two cores.",
    )
    if folder is None:
        return
    view = _read(str(folder), "spectra")
    models = view.document["models"]
    titles = [*expert_titles(run.report, [m for m in models if m != MERGED]), *(["Merged"] if MERGED in models else [])]
    kind = st.selectbox(
        "Measure",
        list(RANKS),
        format_func=lambda name: RANKS[name][0],
        key="weights.rank",
        bind="query-params",
        width=320,
        help="How many directions of a layer's task vector matter, by this measure of rank.",
    )
    relative = st.toggle(
        "In percent of the full rank",
        True,
        key="weights.rank.relative",
        bind="query-params",
        help="Relative to the most directions that the layer could have.",
    )
    figure(
        rank_figure(view.arrays, view.document["layers"], models, titles, kind, theme(), relative=relative),
        key="weights.ranks",
        run=run,
        unit=f"{RANKS[kind][0]} ({RANKS[kind][1]})",
        images=False,
    )
    _one_spectrum(run, view, models, titles)


@st.fragment
def _one_spectrum(run: RunView, view: Measured, models: list[str], titles: list[str]) -> None:
    st.subheader("One matrix", anchor=False)
    names = {layer.name: layer.short for layer in layers_of(view.document["layers"])}
    layer = st.selectbox(
        "Matrix",
        list(names),
        format_func=names.__getitem__,
        key="weights.matrix.name",
        bind="query-params",
        width=420,
        help="The weight matrix whose singular values are drawn. Blocks count from 1.",
    )
    cumulative = st.toggle(
        "Energy of the leading values",
        key="weights.cumulative",
        bind="query-params",
        help="Cumulated squares of the singular values in place of the values themselves.",
    )
    figure(
        spectrum_figure(view.arrays, layer, models, titles, theme(), cumulative=cumulative),
        key="weights.spectrum",
        run=run,
        unit=f"Singular values of {names[layer]}",
        images=False,
    )


def _measured(run: RunView) -> Path | None:
    folder = view_on_demand(
        run,
        TASK_VECTORS,
        TASK_VECTORS.ask(run.report.recipe),
        key="weights.measure",
        label="Measure the weights",
        icon=":material/straighten:",
    )
    if folder is None:
        empty_state(
            "Not measured yet",
            "Every expert is read once, tensor by tensor: a second for small encoders, under a minute for eight "
            "experts of ViT-B/32. What is measured is kept.",
        )
    return folder


def _choice(table: dict[str, LayerMeasure], key: str) -> LayerMeasure:
    """Let the measure be chosen, and say what it means."""
    name = st.selectbox(
        "Measure",
        list(table),
        format_func=lambda name: table[name].title,
        key=key,
        bind="query-params",
        width=380,
        persist_state="session",
        help="The measure that is drawn, layer by layer.",
    )
    st.caption(table[name].says)
    return table[name]


def _components(layers: Sequence[str], key: str) -> list[str] | None:
    """Let the kinds of layers be chosen; None for all."""
    there = {layer.component for layer in layers_of(layers)}
    kinds = [name for name in COMPONENTS if name in there]
    return (
        st.pills(
            "Layers shown",
            kinds,
            selection_mode="multi",
            key=key,
            bind="query-params",
            persist_state="session",
            help="None chosen: all of them.",
        )
        or None
    )


@st.cache_resource(max_entries=16, show_spinner=False)
def _read(folder: str, name: str) -> Measured:
    return read_measured(Path(folder), name)
