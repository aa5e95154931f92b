"""The section of the weights page that looks at learned coefficients, with and without LwPTV."""

from typing import Any

import numpy as np
import streamlit as st

from engine.catalog import resolve
from engine.errors import EngineError
from engine.figures.coefficients import Learned, amplification_table, coefficient_figure, learned_coefficients
from engine.figures.drawing import expert_titles
from engine.pipeline.viewing.on_weights import merge_only
from engine.pipeline.viewing.shipped import LEARNED
from engine.recipe import MethodCall, Recipe, parse_recipe
from pages.shared.chrome import empty_state, figure, theme
from pages.shared.nouns import kind_of
from pages.shared.on_demand import on_demand
from pages.shared.state import RunView, beside, open_run, store
from pages.shared.tables import draw_table

LOOKED_BACK = 300  # finished runs searched for the counterpart
LAYER_WISE = {"method": "adamerging", "params": {"granularity": "layer"}}


def coefficients(run: RunView) -> None:
    """Draw learned λ of this run, beside those of its counterpart with or without LwPTV."""
    learned = learned_coefficients(run.report)
    if learned is None:
        _not_learned(run)
        return
    _draw(run, learned)


def _not_learned(run: RunView) -> None:
    """Draw the coefficients that come with the app for these experts; where none do, what would be here."""
    shipped = beside(run.report, LEARNED)
    if shipped:
        st.info(
            "This run learned no coefficients. These are AdaMerging's on the same experts, of a run that came with "
            "the app.",
            icon=":material/info:",
        )
        view = next((view for view in shipped if not view.report.recipe.transforms), shipped[0])
        learned = learned_coefficients(view.report)
        if learned is not None:
            _draw(view, learned)
        return
    empty_state(
        "This run learned no coefficients",
        "AdaMerging learns how much of every expert goes into the merged model, for each task or for each task and "
        "layer. Run it on these experts to see the coefficients here.",
    )
    recipe = run.report.recipe.model_copy(update={"merge": MethodCall(**LAYER_WISE), "transforms": ()})
    _run_it(run, recipe, "Learn layer-wise coefficients", "weights.learn")


def _draw(run: RunView, learned: Learned) -> None:
    """Draw what a run learned, beside its counterpart."""
    titles = expert_titles(run.report, learned.experts)
    st.write(
        "How much of every expert's task vector AdaMerging adds, learned without labels by making predictions on the "
        f"tasks' {kind_of(run.report).many} certain."
    )
    behind = learned.pruned_by is not None
    used = (
        bool(learned.layers)
        and behind
        and st.toggle(
            "As used in the merged model (η · λ, pruned layers empty)",
            key="weights.used",
            bind="query-params",
            help="The coefficients times what the transform leaves of each layer.",
        )
    )
    other = _counterpart(run, learned)
    both = [learned, other[1]] if other else [learned]
    values = np.concatenate([(item.used if used else item.values).ravel() for item in both])
    limits = (float(np.nanmin(values)), float(np.nanmax(values))) if np.isfinite(values).any() else None
    name = f"behind LwPTV, η = {learned.pruned_by:g}" if behind else "without LwPTV"
    st.subheader(f"Coefficients {name}", anchor=False)
    figure(
        coefficient_figure(learned, titles, theme(), used=used, limits=limits),
        key="weights.lambda",
        run=run,
        unit="Learned coefficient λ",
        first_seed=True,
        adapted=True,
    )
    if learned.layers:
        _compare(run, learned, other, titles, limits)


def _compare(
    run: RunView, learned: Learned, other: tuple[RunView, Learned] | None, titles: list[str], limits: Any
) -> None:
    """Draw the same merge on the other side of LwPTV."""
    behind = learned.pruned_by is not None
    st.subheader("The same without LwPTV" if behind else "The same behind LwPTV", anchor=False)
    if other is None:
        st.write("Pruning layers before learning inflates the coefficients of those that stay. Run it to see how far.")
        label = "Run it without LwPTV" if behind else "Run it behind LwPTV"
        _run_it(run, _other_side(run.report.recipe), label, "weights.counterpart")
        return
    view, found = other
    figure(
        coefficient_figure(found, titles, theme(), limits=limits),
        key="weights.lambda.other",
        run=view,
        unit="Learned coefficient λ, same colours as above",
        first_seed=True,
        adapted=True,
    )
    pair = (learned, found) if behind else (found, learned)
    table = amplification_table(*pair, titles)
    number = st.column_config.NumberColumn
    draw_table(
        table,
        hide_index=True,
        key="weights.amplification",
        column_config={
            "expert": "Expert",
            "with": number("Mean λ behind LwPTV", format="%.3f"),
            "without": number("Mean λ without", format="%.3f"),
            "ratio": number("Ratio", format="%.2f"),
        },
    )
    st.caption(
        "Means over the layers that both runs train. A ratio above 1 is the amplification that LwPTV's factor η takes "
        "back (Zhang et al., arXiv:2506.09093, Fig. 8)."
    )


def _other_side(recipe: Recipe) -> Recipe:
    """Return the recipe with LwPTV taken out, or put first."""
    rest = tuple(call for call in recipe.transforms if call.method != "lwptv")
    if len(rest) == len(recipe.transforms):
        rest = (MethodCall(method="lwptv"), *rest)
    return resolve(recipe.model_copy(update={"transforms": rest}))


def _counterpart(run: RunView, learned: Learned) -> tuple[RunView, Learned] | None:
    """Return the newest finished run that differs in LwPTV alone."""
    if not learned.layers:
        return None
    wanted = _core(_other_side(run.report.recipe))
    for view in beside(run.report, LEARNED):
        found = learned_coefficients(view.report)
        if found is not None and _core(resolve(view.report.recipe)) == wanted:
            return view, found
    for row in store().runs.list(kinds=("run",), states=("finished",), limit=LOOKED_BACK):
        asked = row.request.get("recipe") or {}
        if asked.get("merge", {}).get("method") != wanted[0].merge.method:
            continue
        try:
            if _core(resolve(parse_recipe(asked))) == wanted:
                view = open_run(row.id)
                found = learned_coefficients(view.report)
                if found is not None and found.experts == learned.experts and found.layers == learned.layers:
                    return view, found
        except EngineError:
            continue
    return None


def _core(recipe: Recipe) -> tuple[Recipe, str]:
    """Return the parts of a recipe that touch weights, without η, to tell whether two runs share them."""
    calls = tuple(
        call.model_copy(update={"params": {}}) if call.method == "lwptv" else call for call in recipe.transforms
    )
    return merge_only(recipe).model_copy(update={"transforms": calls}), recipe.zoo


def _run_it(run: RunView, recipe: Recipe, label: str, key: str) -> None:
    recipe = resolve(merge_only(recipe))
    request = {"recipe": recipe.model_dump(mode="json"), "projection": None}
    done = on_demand(run, "run", request, key=key, name=label, label=label, icon=":material/play_arrow:")
    if done is None:
        many = kind_of(run.report).many
        st.caption(f"Trains on the tasks' adaptation {many}, 500 steps by default; minutes on small encoders.")
    else:
        st.write("It has finished: choose it in the list of runs at the top of the page.")
