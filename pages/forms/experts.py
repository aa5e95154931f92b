"""The choice of experts: of several of one task, those of one recipe; and how much of each takes part."""

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.manifest import Manifest
from engine.recipe import Recipe
from engine.zoo.folder import choose_experts
from engine.zoo.making.records import by_recipe, recipe_title
from pages.forms.params import reaching, seeded
from pages.shared.chrome import plain

LOWEST, HIGHEST, STEP = -1.0, 1.5, 0.05  # weights that sliders offer; a recipe as text may go further


def first_of_each_task(manifest: Manifest) -> list[str]:
    """Return the experts that a recipe takes where it names none."""
    try:
        return [name for name, _ in choose_experts(manifest, Recipe())]
    except EngineError:
        return []


def choose_among(manifest: Manifest, given: Any, key: str) -> list[str]:
    """Draw the choice and return the names of the experts chosen.

    Args:
        manifest: of the zoo.
        given: experts as a recipe names them.
        key: of the widget.
    """
    table = manifest.expert_table
    before = (
        first_of_each_task(manifest)
        if given == "all"
        else [name for name in (e["name"] if isinstance(e, dict) else e for e in given) if name in table]
    )
    seeded(key, before)
    groups = by_recipe(manifest.experts)
    several = len(manifest.experts) > len({expert.task for expert in manifest.experts})
    if several:
        _recipes(manifest, groups, key)
    return st.multiselect(
        "Experts",
        list(table),
        format_func=lambda name: _title(manifest, name, several),
        key=key,
        placeholder="Choose experts",
        help="The fine-tuned models that are merged; each has a task vector, its weights minus the base's.",
    )


def weigh(manifest: Manifest, chosen: Sequence[str], given: Mapping[str, float], key: str) -> dict[str, float]:
    """Draw a slider for the weight of every chosen expert's task vector, and presets; returns the weights by name.

    Args:
        manifest: of the zoo.
        chosen: experts.
        given: weights as a recipe names them; 1 where it names none.
        key: of the choice of experts; the widgets' keys begin with it.
    """
    several = len(manifest.experts) > len({expert.task for expert in manifest.experts})
    title = {name: _title(manifest, name, several) for name in manifest.expert_table}
    before = any(given.get(name, 1.0) != 1.0 for name in chosen)
    on = st.toggle(
        "Weigh each expert",
        key=seeded(f"{key}.weighed", before),
        help="Scales each task vector before the merge: 0 leaves an expert out, a negative weight makes the model "
        "forget its task.",
    )
    if not on:
        return {}
    _presets(list(manifest.expert_table), title, key)
    weights = {}
    for name in chosen:
        own = seeded(f"{key}.weight.{name}", given.get(name, 1.0))
        weights[name] = st.slider(
            plain(title[name]),
            *reaching(own, LOWEST, HIGHEST, float(st.session_state[own])),
            step=STEP,
            format="%.2f",
            key=own,
            help="How much of this task vector takes part; the merge's own λ comes on top.",
        )
    return weights


def _presets(names: Sequence[str], title: Mapping[str, str], key: str) -> None:
    """Offer negation and analogy, Ilharco et al.'s operations on task vectors."""

    def take(weights: Mapping[str, float]) -> None:
        st.session_state[key] = list(weights)
        for name in names:
            st.session_state[f"{key}.weight.{name}"] = weights.get(name, 1.0)

    with st.popover("Presets", icon=":material/tune:", width="stretch"):
        st.button(
            "All with weight 1",
            key=f"{key}.level",
            width="stretch",
            help="The experts that are chosen, each as it is.",
            on_click=take,
            args=(dict.fromkeys(st.session_state[key], 1.0),),
        )
        forgotten = st.selectbox(
            "Forget a task",
            names,
            format_func=title.__getitem__,
            key=f"{key}.forgotten",
            help="The only expert that takes part, with a negative weight.",
        )
        st.button(
            f"Subtract {plain(title[forgotten])}",
            key=f"{key}.forget",
            width="stretch",
            on_click=take,
            args=({forgotten: -1.0},),
            help="Negation: the base minus λ times this task vector.",
        )
        if len(names) < 3:
            return
        st.markdown("Analogy: A is to B as C is to D, which no expert has learned")
        first, second, third = (
            st.selectbox(
                letter,
                names,
                index=place,
                format_func=title.__getitem__,
                key=f"{key}.{letter}",
                help="An expert; A's task vector is subtracted, those of B and C are added.",
            )
            for place, letter in enumerate("ABC")
        )
        st.button(
            "Set C + B − A",
            key=f"{key}.analogy",
            width="stretch",
            disabled=len({first, second, third}) < 3,
            help="Three different experts, the first with weight −1.",
            on_click=take,
            args=({third: 1.0, second: 1.0, first: -1.0},),
        )


def _recipes(manifest: Manifest, groups: dict[str, dict[str, str]], key: str) -> None:
    """Offer all experts of one recipe at once; a menu holds no state of its own."""
    tasks = len({expert.task for expert in manifest.experts})
    titles = {}
    for method, names in groups.items():
        title = recipe_title(manifest.expert_table[next(iter(names.values()))])
        count = f"all {tasks} tasks" if len(names) == tasks else f"{len(names)} of {tasks} tasks"
        titles[method] = f"{title}: {count}"

    def choose() -> None:
        method = st.session_state.get(f"{key}._recipe")
        if method in groups:
            st.session_state[key] = list(groups[method].values())

    chosen = set(st.session_state[key])
    shown = next((title for method, title in titles.items() if set(groups[method].values()) == chosen), "")
    st.menu_button(
        f"Trained by {shown}" if shown else "Trained by …",
        list(titles),
        format_func=titles.__getitem__,
        key=f"{key}._recipe",
        icon=":material/model_training:",
        width="stretch",
        on_click=choose,
        help="Takes the experts of one recipe of fine-tuning.",
    )


def _title(manifest: Manifest, name: str, several: bool) -> str:
    expert = manifest.expert_table[name]
    task = manifest.task_table.get(expert.task)
    title = task.label if task else name
    return f"{title} · {recipe_title(expert)}" if several else title
