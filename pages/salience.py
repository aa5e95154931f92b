"""Salience: which layers matter to which expert, and what a pruning ratio keeps of them."""

import streamlit as st

from engine.figures import COMPONENTS, kept_curve, kept_figure, layers_of, mask_figure, masks_at, salience_heatmap
from engine.report import SaliencePart
from pages._chrome import context_bar, empty_state, figure, theme
from pages._salience_sweep import pruning_sweep
from pages._state import RunView, current_run


def main() -> None:
    """Heatmap, pruning ratio, masks."""
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
    titles = _titles(run, part)
    components = _filter(part)
    logarithmic = st.toggle("Logarithmic colours", True, key="salience.log", persist_state="session")
    figure(
        salience_heatmap(part, theme(), titles=titles, components=components, logarithmic=logarithmic),
        key="salience.heatmap",
        run=run,
        unit="Salience, mean |τ − mean τ| over a layer's parameters",
        images=False,
    )
    _pruning(run, part, titles, components)
    pruning_sweep(run, part.eta if part.applied else None)


def _titles(run: RunView, part: SaliencePart) -> list[str]:
    """Experts by the title of their task, by their name where that is not known."""
    of = {task.expert: task.title for task in run.report.tasks.values() if task.expert and task.title}
    found = [of.get(name, name) for name in part.score]
    return found if len(set(found)) == len(found) else list(part.score)


def _filter(part: SaliencePart) -> list[str] | None:
    """Which kinds of layers are shown; None for all."""
    there = {layer.component for layer in layers_of(part.layers)}
    kinds = [name for name in COMPONENTS if name in there]
    chosen = st.pills("Layers shown", kinds, selection_mode="multi", key="salience.components", persist_state="session",
                      help="None chosen: all of them.")  # fmt: skip
    return chosen or None


@st.fragment
def _pruning(run: RunView, part: SaliencePart, titles: list[str], components: list[str] | None) -> None:
    """The pruning ratio, live on the stored scores."""
    st.subheader("What a pruning ratio keeps", anchor=False)
    eta = st.slider(
        "Pruning ratio η", 0.0, 1.0, float(part.eta), 0.01, key=f"salience.eta.{run.id}",
        help="The share of layers dropped for every expert. A layer stays in the merge if any expert keeps it.",
    )  # fmt: skip
    kept = masks_at(part, eta)
    with st.grid("auto", min_column_width=150, gap="small"):
        st.metric("Layers kept", f"{kept.layers} of {len(kept.shared)}")
        st.metric("Parameters kept", f"{kept.parameters_percent:.1f} %")
        st.metric("Size kept", f"{kept.megabytes:,.2f} MB", help="32-bit numbers, 1 MB = 2²⁰ bytes.")
    st.caption(_used(run, part, eta))
    figure(
        mask_figure(part, kept, theme(), titles=titles, components=components),
        key="salience.masks",
        run=run,
        unit=f"Layers kept at η = {eta:.2f}, per expert and shared",
        images=False,
    )
    st.write(
        "The shared mask keeps a layer for all experts as soon as one of them finds it salient, so more is kept than "
        "1 − η suggests. Below: how fast layers and parameters go; a few large matrices hold most of them."
    )
    figure(kept_figure(_curve(run.stamp, part, tuple(titles)), kept, theme()), key="salience.kept", run=run,
           unit="Percent of layers and of parameters in the shared mask", images=False)  # fmt: skip


def _used(run: RunView, part: SaliencePart, eta: float) -> str:
    """Whether the run itself pruned, in plain words."""
    if part.applied:
        same = "This is the mask that the run used." if abs(eta - part.eta) < 0.005 else "Other values are a preview."
        return f"The run pruned its task vectors with η = {part.eta:.2f} (LwPTV). {same}"
    return (
        "The run did not prune: this is what LwPTV would keep. To see what that does to accuracy, add the transform "
        f"LwPTV with η = {eta:.2f} to the recipe in the lab."
    )


@st.cache_data(max_entries=16, show_spinner=False)
def _curve(stamp: str, _part: SaliencePart, titles: tuple[str, ...]):
    return kept_curve(_part, titles)


main()
