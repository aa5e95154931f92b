"""The part of the zoo page that trains experts: a copy to train in, the form, the training at work, what it made."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from engine.catalog import FINE_TUNING, resolve
from engine.errors import EngineError
from engine.manifest import Manifest, bundled_zoos, locate_zoo
from engine.recipe import Recipe
from engine.store import ACTIVE, Run
from engine.zoo.folder import Zoo
from engine.zoo.making.copy import copies_of
from engine.zoo.modalities import Modality, modality_of
from engine.zoo.names import safe_name
from pages.forms.finetune import training_form
from pages.forms.params import seeded
from pages.forms.recipe import load
from pages.shared.chrome import duration, empty_state, percent, plain
from pages.shared.curves import live_curves
from pages.shared.nouns import called
from pages.shared.progress import log_toggle, log_view, resume, show_progress
from pages.shared.service import ask, told_when_refused
from pages.shared.state import store

COPY = "train.copy"  # in the session: id of the copy that this page follows
DISMISSED = "train.dismissed"  # ids of trainings that have ended and are not to be shown any more
LOOKED_BACK = 40
SAID = "loss on training images, accuracy on validation images"  # said of the zoo's kind of data


def train(zoo: str, manifest: Manifest) -> str | None:
    """Draw the training of experts; returns a zoo that was just made to train in, to be shown instead."""
    made = _copied(zoo)
    if made:
        return made
    row = _followed(zoo)
    if row is not None:
        _job(zoo, row, modality_of(manifest))
        if row.active:
            return None
    kind = modality_of(manifest)
    tasks = _trainable(str(locate_zoo(zoo)), (locate_zoo(zoo) / "zoo.yaml").stat().st_mtime_ns)
    if zoo in bundled_zoos():
        _copy_form(zoo, manifest)
        return st.session_state.pop("train.go", None)
    if not tasks:
        empty_state(
            f"No training {kind.many}",
            f"No in-domain task of this zoo has training {kind.many} with labels (a split train). Test {kind.many} are "
            "never trained on.",
        )
        return None
    st.write(
        "Each expert starts at this zoo's base and learns one task against its frozen head, in the background. The "
        "last step is what counts; nothing is chosen on the way."
    )
    request = training_form(zoo, manifest, tasks)
    many = len(request["tasks"]) if request else 0
    st.button(
        f"Train {many} experts" if many != 1 else "Train the expert",
        key="train.go.button",
        type="primary",
        icon=":material/model_training:",
        disabled=request is None,
        on_click=_submit,
        args=(request,),
    )
    return None


@told_when_refused
def _submit(request: dict[str, Any]) -> None:
    title = FINE_TUNING[request["config"]["method"]].title
    ask("finetune", request, f"{title}: {', '.join(request['tasks'])}")


def _copied(zoo: str) -> str | None:
    """Draw a copy at work; returns the new zoo's folder once."""
    row = store().runs.find(st.session_state.get(COPY, ""))
    if row is None or row.request.get("zoo") != zoo:
        return None
    if row.active:
        show_progress(row, "train.copying", title=True)
        return None
    st.session_state.pop(COPY)
    if row.state == "failed":
        st.error(plain(row.error), icon=":material/error:")
        return None
    folder = store().find(row.result, checksums=False) if row.state == "finished" else None
    return json.loads((folder / "copied.json").read_text("utf-8"))["folder"] if folder else None


def _copy_form(zoo: str, manifest: Manifest) -> None:
    """Ask for a zoo to train in, where the one shown comes with the app and stays as it is."""
    st.write(
        "A zoo that comes with the app stays as it is. Experts are trained in a copy of it, with the training "
        f"{modality_of(manifest).many} that its own experts saw, made again."
    )
    known = copies_of(manifest.name, store().zoos.list())
    for place in known:
        st.button(
            f"Train in {plain(place.name)}",
            key=f"train.in.{place.name}",
            icon=":material/folder_open:",
            on_click=_go,
            args=(str(place),),
        )
    if st.session_state.get(COPY):
        return
    taken = {place.name for place in (store().root / "zoos").glob("*")}
    usual = next(
        name for n in range(1, 99) if (name := f"{manifest.name}-trained{'' if n == 1 else f'-{n}'}") not in taken
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.text_input(
            "Name of the copy",
            key=seeded(f"train.name.{usual}", usual),
            max_chars=64,
            help="A new zoo in the store, beside those that were imported.",
        )
        st.button(
            "Make a copy to train in",
            key="train.copy.button",
            type="secondary" if known else "primary",
            icon=":material/content_copy:",
            disabled=not name or safe_name(name) != name,
            on_click=_copy,
            args=(zoo, name),
        )
    if name and safe_name(name) != name:
        st.caption(plain(f"A name of letters, digits, dots, dashes and underscores, such as {safe_name(name)}."))


def _go(zoo: str) -> None:
    st.session_state["train.go"] = zoo


@told_when_refused
def _copy(zoo: str, name: str) -> None:
    st.session_state[COPY] = ask("copy", {"zoo": zoo, "name": name}, f"Copy of {Path(zoo).name}: {name}").id


def _followed(zoo: str) -> Run | None:
    """Return the training of this zoo that is at work, else the one that ended last and was not dismissed."""
    rows = [
        row
        for row in store().runs.list(kinds=("finetune",), limit=LOOKED_BACK)
        if row.request.get("zoo") == zoo and row.id not in st.session_state.get(DISMISSED, ())
    ]
    return next((row for row in rows if row.state in ACTIVE), rows[0] if rows else None)


def _job(zoo: str, row: Run, kind: Modality) -> None:
    with st.container(border=True, key="train.job"):
        if row.active:
            show_progress(row, "train", title=True, border=False, below=partial(_curves, kind=kind))
        elif row.state == "finished":
            _made(zoo, row, kind)
        else:
            _ended(row)


def _curves(row: Run, kind: Modality) -> None:
    live_curves(row.metrics, called(SAID, kind))


def _ended(row: Run) -> None:
    if row.state == "failed":
        st.error(f"**{plain(row.name)}** failed. {plain(row.error)}", icon=":material/error:")
    else:
        st.info(f"**{plain(row.name)}** was stopped. Its checkpoint is kept.", icon=":material/info:")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Go on",
            key="train.resume",
            icon=":material/replay:",
            on_click=resume,
            args=(row.id,),
            help="Goes on from the last checkpoint and ends with the same experts, to the bit.",
        )
        st.button("Dismiss", key="train.dismiss", on_click=_dismiss, args=(row.id,))
        log_toggle("train.ended.log")
    if st.session_state.get("train.ended.log"):
        log_view(row.id)


def _made(zoo: str, row: Run, kind: Modality) -> None:
    folder = store().find(row.result, checksums=False)
    if folder is None:
        return
    records = json.loads((folder / "experts.json").read_text("utf-8"))
    many = "1 expert" if len(records) == 1 else f"{len(records)} experts"
    st.success(f"{plain(row.name)}: {many} in the zoo, in {duration(row.elapsed)}.")
    st.markdown("\n".join(_line(name, record, kind) for name, record in records.items()))
    with st.container(horizontal=True):
        if len(records) > 1 and st.button(
            "Merge them in the lab", key="train.merge", type="primary", icon=":material/science:"
        ):
            load(_recipe(zoo, list(records)))
            st.switch_page("pages/lab.py", query_params={})  # a bare switch refuses bound parameters
        st.button("Train more", key="train.dismiss", icon=":material/add:", on_click=_dismiss, args=(row.id,))


def _line(name: str, record: dict[str, Any], kind: Modality) -> str:
    accuracy, count = record["validation_accuracy"], record["images"]["validation"]
    before, after = (percent(accuracy[state]) for state in ("base", "expert"))
    return f"- **{plain(name)}**: {before} → **{after}** on {count:,} validation {kind.many}"


def _recipe(zoo: str, experts: list[str]) -> Recipe:
    """Return a recipe that merges new experts as they are meant to be evaluated."""
    table = Zoo.open(zoo).manifest.expert_table
    forward = {table[name].forward for name in experts if name in table}
    linear = forward == {"linearised"}
    return resolve(
        Recipe(zoo=zoo, experts=tuple(experts), forward="linearised" if linear else "standard")  # type: ignore[arg-type]
    )


def _dismiss(run: str) -> None:
    st.session_state[DISMISSED] = {*st.session_state.get(DISMISSED, ()), run}


@st.cache_data(max_entries=64, ttl=60, show_spinner=False)
def _trainable(folder: str, modified: int) -> list[str]:
    """Return the in-domain tasks that have training samples and classes; what cannot be opened has none."""
    zoo, found = Zoo.open(folder), []
    for task in zoo.manifest.tasks:
        try:
            if task.role == "in" and not task.grades and task.data and zoo.data[task.name].has("train"):
                found.append(task.name)
        except EngineError:
            continue
    return found
