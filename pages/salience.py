"""Salience: which layers matter to which expert, and what a pruning ratio keeps of them."""

import pandas as pd
import streamlit as st

from engine.figures import (
    COMPONENTS,
    Drawing,
    kept_curve,
    kept_figure,
    layer_ranking,
    layers_of,
    mask_figure,
    masks_at,
    ranked_layers,
    salience_heatmap,
)
from engine.figures.drawing import expert_titles
from engine.figures.palette import Theme
from engine.figures.salience import Kept
from engine.report import SaliencePart
from engine.rounding import rounded
from pages.sections.salience_sweep import pruning_sweep
from pages.shared.chrome import context_bar, empty_state, figure, plain, theme
from pages.shared.one_of import one_of
from pages.shared.state import RunView, current_run

ORDERS = ("By depth", "By value")


def main() -> None:
    """Draw one expert, heatmap, pruning ratio, masks."""
    run = current_run()
    context_bar(run)
    st.title("Which layers matter to which expert", anchor=False)
    part = run.report.salience
    if part is None:
        empty_state(
            "No salience",
            "This page shows how far every layer of an expert lies from the mean of all experts. That needs at least "
            "two experts; run a recipe with more of them.",
        )
        return
    st.write(
        "Fine-tuning changes every layer by a task vector τ. A layer's salience is how far an expert's change is from "
        "the mean change of all experts. High: the layer holds something of that task's own. Low: it moved as in the "
        "others, or hardly at all. Dropping the least salient layers keeps the pretrained weights there."
    )
    titles = expert_titles(run.report, list(part.score))
    _one_expert(run, part, titles)
    st.subheader("All layers and experts", anchor=False)
    components, by_value, logarithmic = _choose_layers(part)
    figure(
        salience_heatmap(
            part, theme(), titles=titles, components=components, logarithmic=logarithmic, by_value=by_value
        ),
        key="salience.heatmap",
        run=run,
        unit="Salience, mean |τ − mean τ| over a layer's parameters",
        images=False,
    )
    _pruning(run, part, titles, components, by_value)
    pruning_sweep(run, part.eta if part.applied else None)


@st.fragment
def _one_expert(run: RunView, part: SaliencePart, titles: list[str]) -> None:
    """Draw the layers that matter most to one expert, in a sentence and as bars."""
    names = list(part.score)
    st.subheader("The layers that matter most to one expert", anchor=False)
    title = st.selectbox(
        "Expert",
        titles,
        key="salience.expert",
        bind="query-params",
        persist_state="session",
        width=320,
        help="Its own layers first: those whose change is farthest from the mean change of all experts.",
    )
    expert = names[titles.index(title)]
    table = ranked_layers(part, expert)
    if table["salience"].max() > 0:
        st.write(_sentence(title, table))
    figure(
        layer_ranking(part, expert, theme(), title=title),
        key="salience.ranking",
        run=run,
        images=False,
        unit="Salience of a layer to this expert, mean |τ − mean τ| over its parameters",
    )


def _sentence(title: str, table: pd.DataFrame) -> str:
    """Return a sentence on the first layers and on the first one's salience to the other experts."""
    first = table.iloc[0]
    text = f"To **{plain(title)}** the layer **{plain(first['label'])}** matters most: salience {first['salience']:.2g}"
    if pd.notna(first["others"]):
        text += f", against {first['others']:.2g} for the other experts on average"
    return (
        f"{text}. Then come {', '.join(plain(name) for name in table['label'].iloc[1:4])}."
        if len(table) > 3
        else (f"{text}.")
    )


def _choose_layers(part: SaliencePart) -> tuple[list[str] | None, bool, bool]:
    """Let the kinds of layers (None for all), an order by value and logarithmic colours be chosen."""
    there = {layer.component for layer in layers_of(part.layers)}
    kinds = [name for name in COMPONENTS if name in there]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        chosen = st.pills(
            "Layers shown",
            kinds,
            selection_mode="multi",
            key="salience.components",
            bind="query-params",
            persist_state="session",
            wrap=True,
            help="Which parts of the encoder are shown, here and in the masks below. None chosen: all of them.",
        )
        order = one_of(
            "Order",
            ORDERS,
            default=ORDERS[0],
            key="salience.order",
            persist_state="session",
            help="Layers from the first to the last of the encoder, or those of highest mean salience first.",
        )
        logarithmic = st.toggle(
            "Logarithmic colours",
            True,
            key="salience.log",
            bind="query-params",
            persist_state="session",
            help="Saliences differ by orders of magnitude: by logarithm, small ones can be told apart too.",
        )
    return chosen or None, order == ORDERS[1], logarithmic


@st.fragment
def _pruning(run: RunView, part: SaliencePart, titles: list[str], components: list[str] | None, by_value: bool) -> None:
    """Draw the pruning ratio, live on the stored scores."""
    st.subheader("What a pruning ratio keeps", anchor=False)
    eta = st.slider(
        "Pruning ratio η",
        0.0,
        1.0,
        float(part.eta),
        0.01,
        key=f"salience.eta.{run.id}",
        bind="query-params",
        help="The share of layers dropped for every expert. A layer stays in the merge if any expert keeps it.",
    )
    kept = masks_at(part, eta)
    with st.grid("auto", min_column_width=150, gap="small"):
        st.metric("Layers kept", f"{kept.layers} of {len(kept.shared)}")
        st.metric("Parameters kept", f"{rounded(kept.parameters_percent)} %")
        st.metric("Size kept", f"{kept.megabytes:,.2f} MB", help="32-bit numbers, 1 MB = 2²⁰ bytes.")
    st.caption(_used(run, part, eta))
    chosen = (theme(), tuple(titles), tuple(components) if components else None, by_value)
    figure(
        _masks(f"{run.stamp}:{eta:.2f}", *chosen, part, kept),
        key="salience.masks",
        run=run,
        unit=f"Layers kept at η = {eta:.2f}, per expert and shared",
        images=False,
    )
    st.write(
        "The shared mask keeps a layer for all experts as soon as one of them finds it salient, so more is kept than "
        "1 − η suggests. Below: how fast layers and parameters go; a few large matrices hold most of them."
    )
    figure(
        _kept(f"{run.stamp}:{eta:.2f}", theme(), tuple(titles), part, kept),
        key="salience.kept",
        run=run,
        unit="Percent of layers and of parameters in the shared mask",
        images=False,
    )


def _used(run: RunView, part: SaliencePart, eta: float) -> str:
    """Say whether the run itself pruned."""
    if part.applied:
        own = next((call.params for call in run.report.recipe.transforms if call.method == "lwptv"), {})
        same = "This is the mask that the run used." if abs(eta - part.eta) < 0.005 else "Other values are a preview."
        if not own.get("shared", True):
            same = "It did so for each expert by itself, as the experts' rows show, and not by the shared mask."
        return f"The run pruned its task vectors with η = {part.eta:.2f} (LwPTV). {same}"
    return (
        "The run did not prune: this is what LwPTV would keep. To see what that does to accuracy, add the transform "
        f"LwPTV with η = {eta:.2f} to the recipe in the lab."
    )


@st.cache_resource(max_entries=128, show_spinner=False)
def _masks(
    stamp: str,
    look: Theme,
    titles: tuple[str, ...],
    components: tuple[str, ...] | None,
    by_value: bool,
    _part: SaliencePart,
    _kept: Kept,
) -> Drawing:
    """Return the masks at a pruning ratio; a slider that goes to and fro draws each once."""
    return mask_figure(_part, _kept, look, titles=titles, components=components, by_value=by_value)


@st.cache_resource(max_entries=128, show_spinner=False)
def _kept(stamp: str, look: Theme, titles: tuple[str, ...], _part: SaliencePart, _kept: Kept) -> Drawing:
    return kept_figure(_curve(stamp.rpartition(":")[0], _part, titles), _kept, look)


@st.cache_data(max_entries=16, show_spinner=False)
def _curve(stamp: str, _part: SaliencePart, titles: tuple[str, ...]):
    return kept_curve(_part, titles)


main()
