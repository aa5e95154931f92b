"""The form of a training: a recipe with its equation and parameters, tasks, settings, and how long it will take."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args

import streamlit as st

from engine.catalog import FINE_TUNING, FineTuningRow, params_of
from engine.catalog.fine_tuning import Augmentation
from engine.errors import EngineError, RecipeError
from engine.manifest import STANDARD, Manifest, bundled_zoos
from engine.pipeline.zoos.foreseen import foreseen
from engine.pipeline.zoos.request import FinetuneConfig, FinetuneRequest
from engine.zoo.encoders.architecture import unlike
from engine.zoo.making.adopt import way_of
from engine.zoo.modalities import Modality, modality_of
from pages.forms.params import method_notes, param_fields, seeded
from pages.forms.teacher import teacher_fields
from pages.shared.chrome import duration, plain
from pages.shared.state import store
from pages.shared.zoos import zoo_folder, zoo_manifest

PREFIX = "train."
MEMORY = "train.memory"  # parameters of every recipe that was looked at
DEFAULT_STEPS = 250
AUGMENTATIONS = get_args(Augmentation)


def training_form(zoo: str, manifest: Manifest, tasks: Sequence[str]) -> dict[str, Any] | None:
    """Draw the form and return the request, None while it cannot be carried out.

    Args:
        zoo: name or folder.
        manifest: of the zoo.
        tasks: those that have training samples.
    """
    kind = modality_of(manifest)
    row = _recipe(kind)
    params = param_fields(row, _memory(row.name), f"{PREFIX}{row.name}")
    chosen = _tasks(zoo, manifest, tasks, row)
    config = {**_settings(kind), "method": row.name, "params": params}
    start = _start(zoo, manifest) if st.session_state.get(f"{PREFIX}all") else ""
    teacher, nobody = (None, "") if row.joint else teacher_fields(zoo, manifest, chosen)
    method = way_of(row.name, taught=teacher is not None, moved=bool(start))
    have = _there(manifest, row, chosen, method)
    replace = bool(have) and st.toggle(
        "Replace what is there",
        key=seeded(f"{PREFIX}replace", False),
        help="A task has one expert by each recipe, a zoo one joint model; they give way to the new ones.",
    )
    problem = nobody or _problem(row, params, chosen, have, replace) or _nobody_to_imitate(manifest, row, chosen)
    request: dict[str, Any] = {"zoo": zoo, "tasks": chosen, "config": config, "replace": replace}
    if start:
        request["start"] = {"zoo": start}
    if teacher:
        request["teacher"] = teacher
    if not problem:
        try:
            FinetuneRequest.parse(request)
        except RecipeError as error:
            problem = str(error)
    if problem:
        st.error(plain(problem), icon=":material/error:")
        return None
    names = [row.reference] if row.joint else [task if method == STANDARD else f"{task}-{method}" for task in chosen]
    st.caption(plain(f"In the zoo: {', '.join(names)}. {_foreseen(zoo, row, config, 1 if row.joint else len(chosen))}"))
    return request


def _recipe(kind: Modality) -> FineTuningRow:
    with st.container(border=True):
        name = st.selectbox(
            "Recipe",
            list(FINE_TUNING),
            format_func=lambda name: FINE_TUNING[name].title,
            key=seeded(f"{PREFIX}method", "saft"),
            help="How the experts are trained; each recipe is a row of the catalogue.",
        )
        row = FINE_TUNING[name]
        method_notes(row, kind)
        cost = "as much as" if row.cost == 1 else f"{row.cost:g} times"
        forward = " Its experts are evaluated linearised." if row.forward == "linearised" else ""
        st.caption(plain(f"A step costs {cost} standard training's.{forward}"))
    return row


def _start(zoo: str, manifest: Manifest) -> str:
    """Let another zoo's base be chosen, of those that experts can start from; '' for the zoo's own."""
    found = {"": "this zoo's base"}
    for place in (*bundled_zoos(), *map(str, store().zoos.list())):
        with suppress(EngineError, OSError):
            other = zoo_manifest(place)
            if place != zoo and not unlike(zoo_folder(zoo), manifest, zoo_folder(place), other):
                found[place] = f"the base of {other.name}"
    if len(found) == 1:
        return ""
    return st.selectbox(
        "Start from",
        list(found),
        format_func=lambda place: plain(found[place]),
        key=seeded(f"{PREFIX}start.{zoo}", ""),
        help="Experts of another base learn with this zoo's heads; they can be merged once they are aligned, above.",
    )


def _there(manifest: Manifest, row: FineTuningRow, chosen: Sequence[str], method: str) -> list[str]:
    """Return what this way of training has made of these tasks already."""
    if row.joint:
        return [reference.name for reference in manifest.references if reference.name == row.reference]
    return [expert.name for task in chosen if (expert := manifest.expert_of(task, method))]


def _tasks(zoo: str, manifest: Manifest, tasks: Sequence[str], row: FineTuningRow) -> list[str]:
    free = [task for task in tasks if not manifest.expert_of(task, row.name)]
    return st.multiselect(
        "Tasks",
        tasks,
        format_func=lambda name: manifest.task_table[name].label,
        key=seeded(f"{PREFIX}tasks.{zoo}.{row.name}", free),
        placeholder="Choose tasks",
        help=f"One expert is trained for each, on its training {modality_of(manifest).many}.",
    )


def _settings(kind: Modality) -> dict[str, Any]:
    """Draw the settings of every recipe and return those that are given."""
    with st.grid("auto", min_column_width=150, gap="small"):
        found: dict[str, Any] = {
            "steps": st.number_input(
                "Steps", 1, 1_000_000, key=seeded(f"{PREFIX}steps", DEFAULT_STEPS), help=_hint("steps")
            ),
            "batch_size": st.number_input(
                "Batch size", 1, 8192, key=seeded(f"{PREFIX}batch", 64), help=_hint("batch_size")
            ),
            "learning_rate": st.number_input(
                "Learning rate",
                1e-7,
                1.0,
                key=seeded(f"{PREFIX}rate", None),
                format="%g",
                placeholder="by size",
                help=_hint("learning_rate"),
            ),
            "seed": st.number_input("Seed", 0, key=seeded(f"{PREFIX}seed", 0), help=_hint("seed")),
        }
    if st.toggle("All settings", key=seeded(f"{PREFIX}all", False), help="Schedule, decay, augmentation, storage."):
        found |= _more_settings(kind)
    return {name: value for name, value in found.items() if value is not None}


def _more_settings(kind: Modality) -> dict[str, Any]:
    varied = kind.augmentations
    with st.grid("auto", min_column_width=200, gap="small"):
        return {
            "warmup": st.number_input(
                "Warm-up", 0, key=seeded(f"{PREFIX}warmup", None), placeholder="a tenth", help=_hint("warmup")
            ),
            "decay": st.selectbox(
                "Cosine", ["whole", "after_warmup"], key=seeded(f"{PREFIX}decay", "whole"), help=_hint("decay")
            ),
            "weight_decay": st.number_input(
                "Weight decay", 0.0, 10.0, key=seeded(f"{PREFIX}wd", 0.0), format="%g", help=_hint("weight_decay")
            ),
            "label_smoothing": st.number_input(
                "Label smoothing",
                0.0,
                0.99,
                key=seeded(f"{PREFIX}smooth", 0.0),
                format="%g",
                help=_hint("label_smoothing"),
            ),
            "augmentation": st.selectbox(
                "Augmentation",
                sorted(varied, key=AUGMENTATIONS.index),
                key=seeded(f"{PREFIX}augment.{kind.name}", varied[0]),
                disabled=len(varied) == 1,
                help=_hint("augmentation"),
            ),
            "dtype": st.selectbox(
                "Stored as", ["float32", "float16"], key=seeded(f"{PREFIX}dtype", "float32"), help=_hint("dtype")
            ),
        }


def _hint(name: str) -> str:
    return FinetuneConfig.model_fields[name].description or ""


def _problem(
    row: FineTuningRow, params: Mapping[str, Any], chosen: Sequence[str], have: Sequence[str], replace: bool
) -> str:
    try:
        params_of(row, dict(params))
    except RecipeError as error:
        return str(error)
    if not chosen:
        return "Choose at least one task."
    if have and not replace:
        return f"There is already, by this recipe: {', '.join(have)}. Leave it out, or replace it."
    if row.joint and len(chosen) < 2:
        return "Joint training needs two tasks or more."
    return ""


def _nobody_to_imitate(manifest: Manifest, row: FineTuningRow, chosen: Sequence[str]) -> str:
    """Return which tasks have no expert, where the recipe imitates experts; '' where all have one."""
    there = {expert.task for expert in manifest.experts}
    missing = [task for task in chosen if task not in there] if "experts" in row.needs else []
    return f"It imitates an expert of every task, and these have none: {', '.join(missing)}." if missing else ""


def _foreseen(zoo: str, row: FineTuningRow, config: Mapping[str, Any], count: int) -> str:
    many = "one expert" if count == 1 else f"{count} experts"
    try:
        found = foreseen(zoo, row.name, config["steps"], config["batch_size"], count, store())
    except EngineError:
        found = None
    if found is None:
        return f"How long {many} of this architecture will take is not known before the first step."
    rough = 60 * round(found.seconds / 60) if found.seconds > 90 else max(found.seconds, 1)
    time = duration(rough).removesuffix(" 0 s")
    return f"About {time} for {many} ({found.basis})."


def _memory(name: str) -> dict[str, Any]:
    return st.session_state.setdefault(MEMORY, {}).setdefault(name, {})
