"""The zoo: its images by class, its experts, the training and alignment of more, its prompts, its terms of use."""

from contextlib import suppress

import streamlit as st

from engine.errors import EngineError
from engine.manifest import Manifest, known_zoos, locate_zoo
from engine.recipe import parse_recipe
from engine.zoo.modalities import modality_of
from pages.sections import zoo_parts as parts
from pages.sections.zoo_align import ALIGN, align
from pages.sections.zoo_train import train
from pages.shared.chrome import empty_state, error_state, plain, switcher
from pages.shared.one_of import one_of
from pages.shared.state import RunView, find_current, store
from pages.shared.zoos import zoo_manifest

ZOO = "zoo"  # the address parameter
SAMPLES = "Images"
WORK = {"Train experts": train, ALIGN: align}  # that changes a zoo, or asks for a copy to change
LOOKED_BACK = 60  # runs whose zoos are offered


def main() -> None:
    """Draw the switcher, the facts and one part."""
    run = find_current()
    zoo = _choose(run)
    try:
        manifest = zoo_manifest(zoo)
        ready = locate_zoo(zoo).is_dir()
    except (EngineError, OSError) as error:
        error_state(error, "Choose another zoo above.")
        return
    st.title(plain(manifest.title or manifest.name), anchor=False)
    st.caption(" · ".join(f"{name}\u00a0**{plain(value)}**" for name, value in _facts(manifest, zoo)))
    if manifest.description:
        st.write(plain(manifest.description))
    kind = modality_of(manifest)
    moved = any(expert.base for expert in manifest.experts)
    views = ["Experts", "Train experts", *([ALIGN] if moved else []), *(["Prompts"] if kind.worded else []), "Licences"]
    titles = {SAMPLES: kind.many.capitalize(), **{view: view for view in views}}
    parts.known_facts(manifest)
    parts.targets(zoo, manifest)
    view = one_of(
        "What to show",
        list(titles),
        format_func=titles.get,
        default=SAMPLES,
        key="zoo.view",
        label_visibility="collapsed",
        help=f"The zoo's {kind.many} by class, its experts and what there is of them.",
    )
    own = run if run is not None and _same(run.report.recipe.zoo, zoo) else None
    if view == "Experts":
        parts.experts(zoo, manifest, own)
    elif view == "Prompts":
        parts.prompts(manifest)
    elif view == "Licences":
        parts.licences(manifest)
    elif ready and view in WORK:
        if made := WORK[view](zoo, manifest):
            _switch(made)
            st.rerun()
    elif ready:
        parts.gallery(zoo, manifest)
    else:
        empty_state(
            "Its files are not on this machine",
            f"This zoo is a description. python -m engine zoo fetch {zoo} downloads its files after asking, or takes "
            "them from a folder with --from; its images then appear here.",
        )


def _choose(run: RunView | None) -> str:
    """Return the zoo shown: from the address, else the one of the run shown, else the first."""
    known = _zoos()
    asked = st.query_params.get(ZOO)
    current = run.report.recipe.zoo if run is not None else next(iter(known))
    wanted = asked or st.session_state.get("zoo.shown") or current
    known.setdefault(wanted, wanted)
    place, _ = st.columns((2, 3))
    with place:
        switcher(
            "Zoo shown",
            known,
            wanted,
            key="zoo.choice",
            on_choice=_switch,
            label_visibility="collapsed",
            help="Zoos that come with the app, and those that runs of this store used.",
        )
    return wanted


def _switch(zoo: str) -> None:
    st.session_state["zoo.shown"] = st.query_params[ZOO] = zoo
    st.query_params.pop("zoo.task", None)
    st.session_state.pop("zoo.task", None)


def _zoos() -> dict[str, str]:
    """Return zoos that can be shown, with what they are called."""
    found = {zoo.name: zoo.name if zoo.ready else f"{zoo.name} · to be fetched" for zoo in known_zoos()}
    for folder in store().zoos.list():
        with suppress(EngineError, OSError):
            found.setdefault(str(folder), zoo_manifest(str(folder)).name)
    for row in store().runs.list(kinds=("run",), limit=LOOKED_BACK):
        try:
            zoo = parse_recipe(row.request.get("recipe")).zoo
            found.setdefault(zoo, f"{zoo_manifest(zoo).name} · {zoo}" if "/" in zoo else zoo)
        except (EngineError, OSError):
            continue
    return found


def _facts(manifest: Manifest, zoo: str) -> list[tuple[str, str]]:
    domains = [task.role for task in manifest.tasks]
    heads = "of its own" if manifest.heads else "from the text encoder, where it has one"
    return [
        ("Zoo", manifest.name),
        ("Architecture", manifest.backbone.architecture),
        ("Base", manifest.backbone.weights),
        ("Experts", str(len(manifest.experts))),
        ("Tasks", f"{domains.count('in')} in domain, {domains.count('out')} out"),
        ("Heads", heads),
        *([("Owner", owner)] if (owner := store().zoos.owner(locate_zoo(zoo))) else []),
    ]


def _same(first: str, second: str) -> bool:
    try:
        return locate_zoo(first) == locate_zoo(second)
    except EngineError:
        return False


main()
