"""Sections on pairs and surroundings of experts: weight disentanglement, sharpness, low-rank subspaces."""

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from engine.errors import EngineError
from engine.figures.disentanglement import disentanglement_figure, inside
from engine.figures.drawing import expert_titles, number
from engine.figures.energy import energy_figure, images_used
from engine.figures.sharpness import sharpness_figure
from engine.pipeline.views.disentanglement import DISENTANGLEMENT
from engine.pipeline.views.energy import ENERGY
from engine.pipeline.views.sharpness import SHARPNESS
from pages.shared.chrome import empty_state, figure, plain, theme
from pages.shared.nouns import called, kind_of
from pages.shared.on_demand import view_on_demand
from pages.shared.one_of import one_of
from pages.shared.state import RunView
from pages.shared.zoos import zoo_manifest

QUANTITIES = {"disagreement": "Changed predictions", "features": "Distance of features"}


def titles_of(run: RunView) -> dict[str, str]:
    """Return the run's experts with their titles."""
    return dict(zip(run.report.experts, expert_titles(run.report, run.report.experts), strict=True))


def disentanglement(run: RunView) -> None:
    """Draw ξ of two experts, by the ordinary encoder beside the linearised one."""
    kind = kind_of(run.report)
    st.write(
        called(
            "Two task vectors are disentangled where adding the second leaves what the first does on its own images "
            "alone, and the other way round. ξ(α₁, α₂) counts what changes. In the linearised encoder vectors add up "
            "exactly, which is not yet disentanglement.",
            kind,
        )
    )
    st.latex(
        r"\xi(\alpha_1,\alpha_2)=\sum_{t=1}^{2}\mathbb{E}_{x\in D_t}\,\mathrm{dist}\big(f(x;\theta_0+\alpha_t\tau_t),"
        r"\,f(x;\theta_0+\alpha_1\tau_1+\alpha_2\tau_2)\big)"
    )
    titles = titles_of(run)
    if len(titles) < 2:
        st.info("This run has one expert; two are needed.", icon=":material/info:")
        return
    first, second, rest = st.columns((2, 2, 1), vertical_alignment="bottom")
    one = first.selectbox(
        "First expert",
        list(titles),
        format_func=titles.__getitem__,
        key="premerging.first",
        bind="query-params",
        help="Gives τ₁ and D₁.",
    )
    two = second.selectbox(
        "Second expert",
        [name for name in titles if name != one],
        format_func=titles.__getitem__,
        key="premerging.second",
        bind="query-params",
        help="Gives τ₂ and D₂.",
    )
    with rest.popover("Settings", icon=":material/tune:", key="premerging.xi.settings"):
        points = st.number_input(
            "Values of each α", 3, 41, 9, key="premerging.points", bind="query-params", help="The grid is square."
        )
        images = st.number_input(
            called("Images a task, at most", kind),
            8,
            2000,
            60,
            key="premerging.xi.images",
            bind="query-params",
            help=called("Drawn from evaluation images.", kind),
        )
    draw_disentanglement(run, (one, two), "premerging.xi", points=points, images=images)


def draw_disentanglement(run: RunView, pair: tuple[str, str], key: str, **settings: int) -> None:
    """Draw ξ of two experts both ways, or what stands in for it.

    Args:
        run: whose experts they are.
        pair: their names.
        key: prefix of the widgets' keys.
        settings: of the view's request, where they are not its own: ``points``, ``images``.
    """
    titles = titles_of(run)
    request = DISENTANGLEMENT.ask(run.report.recipe, first=pair[0], second=pair[1], **settings)
    names = [titles[name] for name in pair]
    folder = view_on_demand(
        run,
        DISENTANGLEMENT,
        request,
        key=key,
        label="Measure the disentanglement",
        icon=":material/grid_on:",
        takes=f"{2 * request.points**2} models on up to {request.images} images a task, and four derivatives.",
        title=f"Disentanglement of {names[0]} and {names[1]}",
        draw=lambda example, folder: _disentanglement(example, folder, key),
    )
    if folder is not None:
        _disentanglement(run, folder, key)


def _disentanglement(run: RunView, folder: Path, key: str) -> None:
    document, kind, titles = DISENTANGLEMENT.read(folder), kind_of(run.report), titles_of(run)
    names = [titles.get(name, name) for name in document["experts"]]
    quantity = one_of(
        "Count",
        list(QUANTITIES),
        format_func=QUANTITIES.__getitem__,
        default="disagreement",
        key=f"{key}.quantity",
        help=called(
            "Images whose predicted class differs (0 to 2 over both tasks), or the mean absolute difference.", kind
        ),
    )
    figure(
        disentanglement_figure(document, names, quantity, theme()),
        key=f"{key}.figure",
        run=run,
        unit=f"ξ, {QUANTITIES[quantity].lower()}, summed over both tasks; the box is where λ is searched",
        count=" and ".join(map(str, document["images"])),
    )
    found = inside(document, quantity)
    if not found:
        st.caption("No value of α but 0 lies inside the box, and there ξ is 0 for any experts. Ask for more values.")
        return
    st.write(
        f"Inside the box ξ is **{number(found['standard'], 3)}** on average by the ordinary encoder and "
        f"**{number(found['linearised'], 3)}** linearised."
    )


def tasks_of_classes(run: RunView) -> dict[str, str]:
    """Return the experts' tasks that have classes, with their titles; where there are none, says what is needed."""
    known, many = run.report.tasks, kind_of(run.report).many
    tasks = {task: known[task].title or task for task in run.report.tasks_of("in") if not known[task].graded}
    if not tasks:
        empty_state(
            f"No {many}",
            f"This looks at {many} of an expert's task that has classes, of which this run has none. Run a recipe on a "
            f"zoo that has some.",
        )
    return tasks


def sharpness(run: RunView) -> None:
    """Draw the loss around the experts of a task."""
    st.write(
        "Merging moves an expert by the other experts' task vectors. Flat minima forgive that: the loss of a task's "
        "experts is followed along the others' vectors, and along random directions of the same length in every tensor."
    )
    tasks = tasks_of_classes(run)
    if not tasks:
        return
    left, right = st.columns((2, 1), vertical_alignment="bottom")
    task = left.selectbox(
        "Task",
        list(tasks),
        format_func=tasks.__getitem__,
        key="premerging.sharp.task",
        bind="query-params",
        help=called("Whose experts and images.", kind_of(run.report)),
    )
    with right.popover("Settings", icon=":material/tune:", key="premerging.sharp.settings"):
        draws = st.number_input(
            "Random directions",
            1,
            50,
            3,
            key="premerging.draws",
            bind="query-params",
            help="Their losses are averaged.",
        )
        seed = st.number_input(
            "Seed of the directions",
            0,
            key="premerging.seed",
            bind="query-params",
            value=0,
            help="Draws the random directions.",
        )
        images = st.number_input(
            called("Images, at most", kind_of(run.report)),
            8,
            2000,
            60,
            key="premerging.sharp.images",
            bind="query-params",
            help=called("Evaluation images that are taken of the task.", kind_of(run.report)),
        )
    request = SHARPNESS.ask(run.report.recipe, task=task, draws=draws, seed=seed, images=images)
    folder = view_on_demand(
        run,
        SHARPNESS,
        request,
        key="premerging.sharp",
        label="Walk away from the experts",
        icon=":material/landscape:",
        takes="All experts that the zoo has of this task, whatever their recipe.",
        title=f"Loss around experts of {tasks[task]}",
        draw=_sharpness,
    )
    if folder is not None:
        _sharpness(run, folder)


def _sharpness(run: RunView, folder: Path) -> None:
    document = SHARPNESS.read(folder)
    task = run.report.tasks[document["task"]].title or document["task"]
    draws = len(next(iter(document["recipes"].values()))["random"])
    figure(
        sharpness_figure(document, theme()),
        key="premerging.sharp.figure",
        run=run,
        unit=f"Cross-entropy on {task}; {len(document['others'])} other experts, {draws} random directions of "
        f"seed {document['seed']}",
        count=f"{document['images']} of {document['available']}",
    )
    walked = [found["expert"] for found in document["recipes"].values()]
    if linear := _trained_linearised(run, walked):
        st.caption(
            f"{plain(', '.join(linear))} {'was' if len(linear) == 1 else 'were'} trained linearised. The loss here is "
            "the ordinary encoder's, as of the others, not that of the derivative by which runs evaluate such experts."
        )


def _trained_linearised(run: RunView, experts: Sequence[str]) -> list[str]:
    """Return those experts that runs evaluate linearised; none where the zoo is not at hand."""
    try:
        table = zoo_manifest(run.report.recipe.zoo).expert_table
    except (EngineError, OSError):
        return []
    return [name for name in experts if name in table and table[name].forward == "linearised"]


def energy(run: RunView) -> None:
    """Draw the energy of own and other tasks' inputs in experts' subspaces."""
    st.write(
        "An update of low rank reads its input in few directions. If the other tasks' inputs have little energy there, "
        "it leaves them alone; if its own have little too, it starves itself. Experts without stored factors are "
        "looked at in the leading directions of their task vectors."
    )
    if len(run.report.experts) < 2:
        st.info("This run has one expert; two are needed.", icon=":material/info:")
        return
    rank = st.number_input(
        "Rank",
        1,
        256,
        8,
        key="premerging.rank",
        bind="query-params",
        width=160,
        help="Directions of experts that have no factors.",
    )
    request = ENERGY.ask(run.report.recipe, rank=rank)
    folder = view_on_demand(
        run,
        ENERGY,
        request,
        key="premerging.energy",
        label="Look at the inputs",
        icon=":material/filter_center_focus:",
        takes=f"The base on up to {request.images} images a task; queries and values of every block.",
        draw=_energy,
    )
    if folder is not None:
        _energy(run, folder)


def _energy(run: RunView, folder: Path) -> None:
    document = ENERGY.read(folder)
    figure(
        energy_figure(document, titles_of(run), theme()),
        key="premerging.energy.figure",
        run=run,
        unit="Percent of the squared length of the base's inputs, mean over queries' and values' matrices",
        count=images_used(document),
    )
