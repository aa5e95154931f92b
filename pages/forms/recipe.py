"""The recipe form, made from the catalog's rows; what it holds survives a change of page."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine.catalog import MERGE_METHODS, TRANSFORMS, resolve
from engine.catalog.words import CATEGORIES as FAMILIES
from engine.errors import EngineError
from engine.manifest import Manifest, known_zoos, manifest_file
from engine.recipe import Recipe, parse_recipe, read_recipe
from engine.zoo.folder import compared_with, several_of_a_task
from engine.zoo.modalities import Modality
from pages.forms import drafts, preview
from pages.forms.calibrators import calibrator_cards
from pages.forms.experts import choose_among, first_of_each_task, weigh
from pages.forms.fetch import fetch_panel
from pages.forms.params import about, complain, param_fields, seeded
from pages.forms.preflight import preflight_line, withdraw
from pages.forms.recipes import check, differences
from pages.shared.chrome import plain, stale_state
from pages.shared.nouns import called, kind_of_zoo
from pages.shared.state import RunView, store
from pages.shared.zoos import zoo_folder, zoo_manifest

RECIPE = "form.recipe"  # the recipe as set, in the session; no widget owns this key
MEMORY = "form.memory"  # parameters of every method that was looked at, so that they survive a change of method
PREFIX = "form.w."  # keys of widgets
SHOWN_CHANGES = 3
LONGEST = 4000  # digits of a number that Python reads
FIRST_RECIPE = {
    "zoo": "mini8",
    "merge": {"method": "task_arithmetic"},
    "calibrators": [{"method": "surgery"}, {"method": "prob_surgery", "params": {"steps": 1000}}],
}
PROTOCOLS = {
    "held_out": ("Held out", "Calibrators adapt on images that are not scored."),
    "paper": ("As in the papers", "They adapt on the scored images, without labels. Flatters the result."),
}


def recipe_form(
    run: RunView | None,
    submit: Callable[[Recipe], Any],
    running: Recipe | None = None,
    place: DeltaGenerator | None = None,
) -> None:
    """Draw the form.

    Args:
        run: the run on the page.
        submit: called with a valid recipe.
        running: recipe of the run at work.
        place: of the page, where a preview of what the form holds is drawn.
    """
    shown = run.report.recipe if run is not None else None
    document = _document(shown)
    with st.container(key="form.head"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.subheader("Recipe", anchor=False, width="stretch")
            button = st.container(width="content")
        brief = st.container(key="form.preview")  # shown where the form covers the page
    said = st.container()
    zoo, experts, forward = _experts(document)  # from here on in the order in which things happen
    transforms = _transforms(document["transforms"])
    merge = _merge(document["merge"])
    calibrators = calibrator_cards(document["calibrators"], PREFIX)
    probe, seeds = _probe(document, kind_of_zoo(zoo))
    built = {"zoo": zoo, "experts": experts, "transforms": transforms, "merge": merge}
    built |= {"calibrators": calibrators, "probe": probe, "seeds": seeds, "forward": forward}
    st.session_state[RECIPE] = built
    recipe, problems = check(built)
    _text(recipe)
    _keep(recipe, shown)
    if shown is not None and (recipe is None or differences(shown, recipe)):
        st.button(
            "Back to the settings of the run shown", key="form.reset", type="tertiary", on_click=load, args=(shown,)
        )
    with button:
        if st.button("Run", key="form.run", type="primary", icon=":material/play_arrow:", disabled=recipe is None):
            withdraw()
            preview.withdraw()
            submit(recipe)
            st.rerun()
    with said:
        _status(recipe, problems, shown, running)
    preview.follow(recipe, run, place, brief)


def _keep(recipe: Recipe | None, shown: Recipe | None) -> None:
    """Keep a recipe that differs from that of the run shown for a reload; one that cannot be used keeps the last."""
    if recipe is None:
        return
    if differences(shown or parse_recipe(FIRST_RECIPE), recipe):
        drafts.keep(recipe)
    else:
        drafts.forget()


def _status(recipe: Recipe | None, problems: Sequence[str], shown: Recipe | None, running: Recipe | None) -> None:
    """Say how the form differs from the run shown and from the run at work."""
    for problem in problems:
        st.error(plain(problem), icon=":material/error:")
    if recipe is None:
        return
    changes = differences(shown, recipe) if shown else []
    if running and not differences(running, recipe):
        st.caption(":material/hourglass_top: These settings are running.")
    elif changes:
        more = len(changes) - SHOWN_CHANGES
        listed = ", ".join(changes[:SHOWN_CHANGES]) + (f" and {more} more" if more > 0 else "")
        stale_state(f"Not run yet: {listed}")
    elif shown:
        st.caption("The settings of the run shown.")
    if changes or not shown:
        preflight_line(recipe, shown)


def load(recipe: Recipe) -> None:
    """Set the form to a recipe."""
    for key in [key for key in st.session_state if str(key).startswith(PREFIX)]:
        del st.session_state[key]
    st.session_state[MEMORY] = {}
    st.session_state[RECIPE] = recipe.model_dump(mode="json")
    for place, calls in (("transform", recipe.transforms), ("merge", (recipe.merge,))):
        for call in calls:
            _memory(place, call.method).update(call.params)


def is_changed(shown: Recipe) -> bool:
    """Return whether the form holds something else than a run's recipe."""
    document = st.session_state.get(RECIPE)
    if document is None:
        return False
    recipe, _ = check(document)
    return recipe is None or bool(differences(shown, recipe))


def _document(shown: Recipe | None) -> dict[str, Any]:
    """Return what the form starts from: what it held, else the run shown, else a first recipe."""
    if RECIPE not in st.session_state:
        load(shown or parse_recipe(FIRST_RECIPE))
    return st.session_state[RECIPE]


def _merge(call: Mapping[str, Any]) -> dict[str, Any]:
    rows = sorted(MERGE_METHODS.values(), key=lambda row: list(FAMILIES).index(row.category))
    titles = {row.name: f"{FAMILIES[row.category]} · {row.title}" for row in rows}
    key = seeded(f"{PREFIX}merge", call["method"] if call["method"] in titles else rows[0].name)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="xsmall"):
        method = st.selectbox(
            "Merge method",
            list(titles),
            format_func=titles.__getitem__,
            key=key,
            help="How the experts' task vectors become one model. Beside it: equation, paper and "
            "what the method needs.",
        )
        row = MERGE_METHODS[method]
        about(row, f"{PREFIX}merge.about")
    params = param_fields(row, _memory("merge", method), f"{PREFIX}merge.{method}")
    complain(row, params)
    return {"method": method, "params": params}


def _experts(document: Mapping[str, Any]) -> tuple[str, Any, str]:
    """Let zoo, experts and their evaluation be chosen; returns all three."""
    options = list(
        dict.fromkeys([*(known.name for known in known_zoos()), *map(str, store().zoos.list()), document["zoo"]])
    )
    with st.expander("Zoo and experts", icon=":material/category:", key=f"{PREFIX}experts.card"):
        key = seeded(f"{PREFIX}zoo", document["zoo"])
        zoo = st.selectbox(
            "Zoo", options, format_func=_zoo_title, key=key, help="A base model and experts fine-tuned from it."
        )
        try:
            manifest = zoo_manifest(zoo)
        except EngineError as error:
            st.error(plain(error))
            return zoo, document["experts"], document.get("forward", "standard")
        fetch_panel(zoo)
        if not manifest.experts:
            _without_experts(zoo)
            return zoo, "all", "standard"
        given = document["experts"] if zoo == document["zoo"] else "all"
        said = {} if given == "all" else {e["name"]: e.get("weight", 1.0) for e in given if isinstance(e, dict)}
        chosen = choose_among(manifest, given, f"{PREFIX}experts.{zoo}")
        for task, several in several_of_a_task(manifest, chosen).items():
            st.caption(plain(compared_with(task, several)))
        weights = weigh(manifest, chosen, said, f"{PREFIX}experts.{zoo}")
        forward = _forward(manifest, chosen, document.get("forward", "standard"))
    if chosen == first_of_each_task(manifest) and all(weights.get(name, 1.0) == 1.0 for name in chosen):
        return zoo, "all", forward
    return zoo, [{"name": name, "weight": weights.get(name, 1.0)} for name in chosen], forward


def _forward(manifest: Manifest, chosen: Sequence[str], before: str) -> str:
    """Let the evaluation be chosen; experts that were trained linearised are evaluated so as well."""
    trained = sum(manifest.expert_table[name].forward == "linearised" for name in chosen)
    key = f"{PREFIX}forward"
    linear = st.toggle(
        "Evaluate linearised",
        key=seeded(key, before == "linearised"),
        help="By the first-order approximation around the base, f(x; θ₀) + ∇f·Σ λ τ, whose features add up exactly; "
        "needs no training, and fits experts that were trained so.",
    )
    if trained and not linear:
        st.caption(f":orange[:material/warning:] {trained} of these experts were trained linearised.")
    return "linearised" if linear else "standard"


def _without_experts(zoo: str) -> None:
    """Draw a zoo that was just begun: what it lacks, and the ways to get it."""
    said = called("This zoo has a base and images, but no experts yet.", kind_of_zoo(zoo))
    st.info(said, icon=":material/info:")
    st.page_link("pages/zoo.py", label="Train one expert a task from its base", icon=":material/model_training:")
    st.code(f"python -m engine zoo finetune {zoo}", language="bash", wrap_lines=True)
    st.page_link("pages/bring.py", label="Or add checkpoints", icon=":material/add_box:")


def _transforms(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not TRANSFORMS:
        return []
    with st.expander("Transforms", icon=":material/filter_alt:", key=f"{PREFIX}transforms.card"):
        chosen = st.multiselect(
            "Applied in this order",
            list(TRANSFORMS),
            format_func=lambda name: TRANSFORMS[name].title,
            key=seeded(f"{PREFIX}transforms", [call["method"] for call in calls if call["method"] in TRANSFORMS]),
            placeholder="None",
            help="Change the task vectors before they are merged.",
        )
        built = []
        for method in chosen:
            row = TRANSFORMS[method]
            with st.container(horizontal=True, vertical_alignment="center"):
                st.markdown(f"**{plain(row.title)}**", width="stretch")
                about(row, f"{PREFIX}transform.{method}.about")
            params = param_fields(row, _memory("transform", method), f"{PREFIX}transform.{method}")
            complain(row, params)
            built.append({"method": method, "params": params})
    return built


def _probe(document: Mapping[str, Any], kind: Modality) -> tuple[dict[str, Any], Any]:
    probe, many = document["probe"], kind.many.capitalize()
    with st.expander(f"{many} and seeds", icon=":material/image_search:", key=f"{PREFIX}probe.card"):
        limit = probe.get("samples_per_task", "all")
        samples = st.number_input(
            f"{many} a task, at most",
            min_value=2,
            key=seeded(f"{PREFIX}samples", None if limit == "all" else limit),
            placeholder="all",
            help=f"Fewer {kind.many} run faster and are less exact. Drawn evenly over the classes.",
        )
        protocol = st.radio(
            "Protocol",
            list(PROTOCOLS),
            format_func=lambda name: PROTOCOLS[name][0],
            captions=[called(text, kind) for _, text in PROTOCOLS.values()],
            key=seeded(f"{PREFIX}protocol", probe.get("protocol", "held_out")),
            help=f"On which unlabelled {kind.many} calibrators and learned merges adapt, and on which they are scored.",
        )
        split = st.number_input(
            "Split seed",
            min_value=0,
            step=1,
            key=seeded(f"{PREFIX}split", probe.get("split_seed", 0)),
            help=f"Draws which {kind.many} are adapted on and which are scored.",
        )
        text = st.text_input(
            "Training seeds",
            key=seeded(f"{PREFIX}seeds", ", ".join(map(str, document["seeds"]))),
            help="Whole numbers, separated by commas. Several give a mean and a standard deviation.",
        )
    return {"samples_per_task": samples or "all", "protocol": protocol, "split_seed": split}, _seeds(text)


def _seeds(text: str) -> list[Any]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return [int(part) if part.isdecimal() and len(part) < LONGEST else part for part in parts]


def _text(recipe: Recipe | None) -> None:
    """Draw the recipe as YAML: to copy, or to paste another one in."""
    part = st.expander("Recipe as text", icon=":material/data_object:", key=f"{PREFIX}text.card", on_change="rerun")
    if not part.open:
        return
    with part:
        if recipe is not None:
            st.code(recipe.to_yaml(), language="yaml", height=200)
        st.text_area(
            "Paste a recipe",
            key="form.paste",
            height=100,
            placeholder="merge: {method: task_arithmetic}",
            help="YAML as the Lab shows it, or as the command line reads it; what is left out has its default.",
        )
        st.button("Use the pasted recipe", key="form.use", on_click=_use_pasted, width="stretch")
        if problem := st.session_state.pop("form.problem", ""):
            st.error(plain(problem), icon=":material/error:")


def _use_pasted() -> None:
    """Read the pasted text with the caps and checks of a recipe file."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pasted.yaml"
            path.write_text(st.session_state.get("form.paste") or "", "utf-8")
            recipe = resolve(read_recipe(path))
        load(recipe)
    except EngineError as error:
        st.session_state["form.problem"] = str(error)


def _memory(place: str, method: str) -> dict[str, Any]:
    return st.session_state.setdefault(MEMORY, {}).setdefault(f"{place}.{method}", {})


def _zoo_title(zoo: str) -> str:
    try:
        manifest = zoo_manifest(zoo)
    except EngineError:
        return Path(zoo).name
    away = manifest_file(zoo_folder(zoo)).name != "zoo.yaml"
    return f"{manifest.title or manifest.name} ({manifest.name})" + (" · to be fetched" if away else "")
