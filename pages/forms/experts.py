"""The choice of experts: of several of one task, those of one recipe."""

from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.manifest import Manifest
from engine.recipe import Recipe
from engine.zoo.folder import choose_experts
from engine.zoo.making.records import by_recipe, recipe_title
from pages.forms.params import seeded


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
