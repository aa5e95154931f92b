"""The part of the zoo page that trains experts: a copy to train in, the form, the training at work, what it made."""

import json
from functools import partial
from typing import Any

import streamlit as st

from engine.catalog import FINE_TUNING, resolve
from engine.errors import EngineError
from engine.manifest import Manifest, bundled_zoos, locate_zoo
from engine.pipeline.zoos.aligning import unaligned
from engine.recipe import Recipe
from engine.store import Run
from engine.zoo.folder import Zoo
from engine.zoo.modalities import Modality, modality_of
from pages.forms.finetune import training_form
from pages.forms.recipe import load
from pages.sections.zoo_align import ALIGN
from pages.sections.zoo_copy import copy_form, made_copy
from pages.sections.zoo_work import dismiss, followed, work
from pages.shared.chrome import duration, empty_state, percent, plain
from pages.shared.curves import live_curves
from pages.shared.nouns import called
from pages.shared.people import desk
from pages.shared.service import ask, told_when_refused
from pages.shared.state import store

SAID = "loss on training images, accuracy on validation images"  # said of the zoo's kind of data


def train(zoo: str, manifest: Manifest) -> str | None:
    """Draw the training of experts; returns a zoo that was just made to train in, to be shown instead."""
    made = made_copy(zoo)
    if made:
        return made
    kind = modality_of(manifest)
    row = followed(zoo, "finetune")
    if row is not None:
        work(
            row,
            "train",
            made=partial(_made, zoo=zoo, kind=kind),
            stopped="Its checkpoint is kept.",
            again="Goes on from the last checkpoint and ends with the same experts, to the bit.",
            below=partial(_curves, kind=kind),
        )
        if row.active:
            return None
    tasks = _trainable(str(locate_zoo(zoo)), (locate_zoo(zoo) / "zoo.yaml").stat().st_mtime_ns)
    if zoo in bundled_zoos():
        st.write(
            "A zoo that comes with the app stays as it is. Experts are trained in a copy of it, with the training "
            f"{kind.many} that its own experts saw, made again."
        )
        return copy_form(zoo, manifest, "train", "train", "trained")
    if not tasks:
        empty_state(
            f"No training {kind.many}",
            f"No in-domain task of this zoo has training {kind.many} with labels (a split train). Test {kind.many} are "
            "never trained on.",
        )
        return None
    if problem := desk().zoo_refusal(zoo):
        st.info(plain(problem), icon=":material/info:")
        return copy_form(zoo, manifest, "train", "train", "trained")
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


def _curves(row: Run, kind: Modality) -> None:
    live_curves(row.metrics, called(SAID, kind))


def _made(row: Run, zoo: str, kind: Modality) -> None:
    folder = store().find(row.result, checksums=False)
    if folder is None:
        return
    records = json.loads((folder / "experts.json").read_text("utf-8"))
    many = "1 expert" if len(records) == 1 else f"{len(records)} experts"
    st.success(f"{plain(row.name)}: {many} in the zoo, in {duration(row.elapsed)}.")
    st.markdown("\n".join(_line(name, record, kind) for name, record in records.items()))
    with st.container(horizontal=True):
        if {expert.name for expert in unaligned(Zoo.open(zoo).manifest)} & set(records):
            st.button(
                "Align them",
                key="train.align",
                type="primary",
                icon=":material/swap_vert:",
                on_click=_align,
                help="They start from another base, so a merge with them is refused until their units are in order.",
            )
        elif len(records) > 1 and st.button(
            "Merge them in the lab", key="train.merge", type="primary", icon=":material/science:"
        ):
            load(_recipe(zoo, list(records)))
            st.switch_page("pages/lab.py", query_params={})  # a bare switch refuses bound parameters
        st.button("Train more", key="train.dismiss", icon=":material/add:", on_click=dismiss, args=(row.id,))


def _align() -> None:
    st.session_state["zoo.view"] = ALIGN


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
