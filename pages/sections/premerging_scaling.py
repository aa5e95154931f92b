"""The section on experts by recipe: accuracy over λ, by the ordinary and the linearised encoder."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.figures.by_recipe import best_table, by_recipe_figure, left_out_table
from engine.pipeline.views.by_recipe import BY_RECIPE, ByRecipeRequest
from engine.zoo.making.records import complete_recipes, recipe_title
from pages.shared.chrome import figure, plain, theme
from pages.shared.nouns import called, kind_of
from pages.shared.on_demand import view_on_demand
from pages.shared.state import RunView
from pages.shared.tables import draw_table
from pages.shared.zoos import zoo_manifest

MOST = ByRecipeRequest.model_fields["images"].default  # images a task
NUMBER = st.column_config.NumberColumn
BEST = {
    "recipe": "Recipe",
    "evaluated": "Evaluated",
    "expert": NUMBER("Experts (%)", format="%.1f", help="Each on its own task, evaluated the same way"),
    "scaling": NUMBER("Best λ", format="%.2f", help="By normalised accuracy on what is scored: no fair choice"),
    "accuracy": NUMBER("There (%)", format="%.1f"),
    "normalised": NUMBER("Of the experts' (%)", format="%.1f"),
    "at_one": NUMBER("At λ = 1 (%)", format="%.1f"),
}
LEFT_OUT = {
    "recipe": "Recipe",
    "expert": "Left out",
    "own": NUMBER("Its task (points)", format="%+.1f"),
    "others": NUMBER(
        "Other tasks, mean (points)", format="%+.1f", help="Above 0: the others are better off without it"
    ),
}


def over_scaling(run: RunView) -> None:
    """Draw task addition over λ for each recipe that has experts of this run's tasks."""
    st.write(
        "Task vectors of the same tasks, trained in different ways, added with the same λ. Solid lines are the "
        "ordinary encoder, dashed ones its first-order approximation around the base, in which task vectors add up "
        "exactly. A curve that stays high beyond its peak forgives a wrong λ."
    )
    titles = recipes_of(run)
    chosen = list(titles)
    if len(titles) > 1:
        chosen = st.pills(
            "Recipes",
            list(titles),
            format_func=titles.__getitem__,
            selection_mode="multi",
            default=list(titles),
            key="premerging.recipes",
            bind="query-params",
            help="Recipes of fine-tuning by which this zoo has an expert for each of the run's tasks.",
        )
    else:
        said = "This zoo has experts of these tasks by one recipe."
        st.caption(f":material/info: {said} Train others on the page Zoo, under Train experts, to compare them here.")
    if not chosen:
        st.caption("Choose at least one recipe.")
        return
    kind = kind_of(run.report)
    images = st.number_input(
        called("Images a task, at most", kind),
        8,
        2000,
        MOST,
        key="premerging.images",
        bind="query-params",
        width=220,
        help=called("Drawn from the evaluation images.", kind),
    )
    document = draw_scaling(run, chosen, images, "premerging.scaling")
    if document is None:
        return
    draw_table(best_table(document), hide_index=True, key="premerging.scaling.best", column_config=BEST)
    st.caption(called("Best λ is chosen on the images that are scored, which flatters every row alike.", kind))
    left_out = left_out_table(document)
    if len(left_out):
        with st.expander("Leave one expert out", icon=":material/person_remove:", key="premerging.left_out"):
            draw_table(left_out, hide_index=True, key="premerging.scaling.left_out", column_config=LEFT_OUT)
            st.caption(
                "At λ = 1, evaluated linearised: there a sum of task vectors is a sum of features, so that this costs "
                "nothing more."
            )


def draw_scaling(run: RunView, recipes: Sequence[str], images: int, key: str) -> dict[str, Any] | None:
    """Draw accuracy over λ both ways, or what stands in for it; returns the view's document where it is there.

    Args:
        run: whose experts' tasks are looked at.
        recipes: of fine-tuning, by name.
        images: of each task, at most.
        key: prefix of the widgets' keys.
    """
    request = BY_RECIPE.ask(run.report.recipe, recipes=tuple(recipes), images=images)
    own = len(run.report.experts) - sum(len(task.others) for task in run.report.tasks.values())
    folder = view_on_demand(
        run,
        BY_RECIPE,
        request,
        key=key,
        label="Follow λ",
        icon=":material/show_chart:",
        takes=f"{len(recipes)} × {own} experts, {len(request.scalings)} values of λ, both ways.",
        draw=lambda example, folder: _curves(example, BY_RECIPE.read(folder), key),
    )
    if folder is None:
        return None
    document = BY_RECIPE.read(folder)
    _curves(run, document, key)
    return document


def _curves(run: RunView, document: dict[str, Any], key: str) -> None:
    counts = document["images"]
    said = f"{counts[0]}–{counts[-1]}" if len(counts) > 1 else str(counts[0])
    figure(
        by_recipe_figure(document, theme()),
        key=f"{key}.figure",
        run=run,
        unit="Mean accuracy over tasks in percent; below, of the recipe's own experts' accuracy",
        count=said,
    )


def recipes_of(run: RunView) -> dict[str, str]:
    """Return the recipes that have an expert for each of the run's tasks, with their titles."""
    try:
        manifest = zoo_manifest(run.report.recipe.zoo)
    except EngineError as error:
        st.error(plain(error))
        return {}
    table = manifest.expert_table
    tasks = [table[name].task for name in run.report.experts if name in table]
    return {
        method: recipe_title(table[next(iter(experts.values()))])
        for method, experts in complete_recipes(manifest.experts, tasks).items()
    }
