"""Settings of an import, the look at its files before anything is written, and the import itself."""

import re
import secrets
from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.pipeline.zoos.import_checkpoints import read_summary
from engine.rounding import bytes_text
from engine.store import Run
from engine.zoo.importing.request import parse_request
from engine.zoo.names import safe_name
from pages.sections import bring_draft as draft
from pages.sections.zoo_parts import FACTS
from pages.shared.chrome import draw_facts, plain
from pages.shared.nouns import called
from pages.shared.progress import show_progress
from pages.shared.service import ask, told_when_refused
from pages.shared.state import store
from pages.shared.tables import draw_table

CHECK, JOB = "bring.check", "import"  # the look at the files; the import itself, also in the address
ASKED = "bring.asked"  # what the last look was asked for
GELUS = {"recognised": None, "QuickGELU": True, "GELU": False}
DTYPES = {
    "keep": "As they are",
    "float32": "Single precision (float32)",
    "float16": "Half precision (float16)",
    "bfloat16": "Half precision (bfloat16)",
}
OWN = "own"  # two lines of numbers follow
OWN_NUMBERS = re.compile(r"mean={0};std={0}".format(r"\s*\d*\.?\d+\s*(?:,\s*\d*\.?\d+\s*){2}"))
PREPROCESSING = {
    "": "Recognised",
    "openai": "OpenAI CLIP's",
    "inception": "Mean and deviation 0.5",
    "imagenet": "ImageNet's",
    OWN: "Own mean and deviation",
}
FIELDS = {  # of the form, by the setting that a fault is about
    "preprocess": "Preprocessing",
    "head_width": "Width of an attention head",
    "quick_gelu": "Activation",
    "logit_scale": "Logit scale",
}


def check_step(words: dict[str, Any]) -> None:
    """Draw the settings, the buttons and what the look at the files found.

    Args:
        words: classes and prompts as the step before left them, keys of the request.
    """
    document = {**draft.document(), **_settings(), **words}
    problem = problem_of(document)
    if problem:
        st.caption(f":material/info: {plain(problem)}")
    summary = _checked(document)
    ready = summary is not None and not summary["faults"]
    with st.container(horizontal=True):
        if st.button(
            "Check",
            key="bring.check.button",
            icon=":material/fact_check:",
            disabled=bool(problem),
            type="secondary" if ready else "primary",
        ):
            _ask_for_check(document)
        if st.button(
            "Make the zoo",
            key="bring.import",
            icon=":material/download_done:",
            disabled=not ready or bool(problem),
            type="primary" if ready else "secondary",
        ):
            _import(document)
    if summary is not None:
        _preview(summary)
    elif not problem:
        said = "Checking looks at every file, tries the models on the images, and writes nothing."
        st.caption(called(said, draft.kind()))


def problem_of(document: dict[str, Any]) -> str:
    """Return what has to be corrected before anything can be checked; '' when nothing."""
    bases = sum(item["role"] == "base" for item in draft.models().values())
    if bases != 1:
        return "No file is the base; choose one, under Role." if not bases else "More than one file is the base."
    if not document["experts"]:
        return "No expert is chosen yet."
    tasks = [safe_name(item["task"]) for item in draft.images().values()]
    if twice := next((task for task in tasks if tasks.count(task) > 1), ""):
        return called(f"Two entries of images are for the task '{twice}'; a task has one.", draft.kind())
    if document["preprocess"].startswith("mean=") and not OWN_NUMBERS.fullmatch(document["preprocess"]):
        return "Mean and deviation need three numbers each, such as 0.5, 0.5, 0.5."
    try:
        parse_request({"name": "zoo", "out": "zoo", **document})
    except EngineError as error:
        return str(error)
    return ""


def summary_of(row: Run) -> dict[str, Any] | None:
    """Return what an import or a look at its files found, where the store still has it."""
    folder = store().find(row.result, checksums=False) if row.result else None
    return read_summary(folder) if folder else None


def _settings() -> dict[str, Any]:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        title = st.text_input(
            "Title",
            key=draft.kept("title", ""),
            placeholder="My experts",
            max_chars=80,
            help="What the zoo is called in lists and context bars.",
        )
        name = safe_name(title or "my-experts").lower()
        place = st.text_input(
            "Zoo folder",
            key=draft.kept("out", ""),
            placeholder=str(draft.zoos_folder() / name),
            max_chars=500,
            help="A new folder on the server; the zoo's manifest and converted weights are written there.",
        )
    with st.expander("How they are stored and read", icon=":material/tune:", key="bring.settings"):
        dtype = st.selectbox(
            "Weights",
            list(DTYPES),
            format_func=DTYPES.__getitem__,
            key=draft.kept("dtype", "keep"),
            help="The number format in which the converted weights are kept.",
        )
        read = _read_images() if draft.kind().worded else _read_texts()
    out = place or str(draft.zoos_folder() / name)
    return {"name": name, "title": title, "out": out, "dtype": dtype, **read}


def _read_texts() -> dict[str, Any]:
    """Draw how texts are read; returns keys of the request."""
    length = st.number_input(
        "Tokens a text",
        min_value=4,
        max_value=4096,
        placeholder="128, or what the model can read",
        key=draft.kept("length"),
        help="Longer texts are cut; how many are is said when the zoo is checked.",
    )
    return {"quick_gelu": None, "preprocess": "", "head_width": None, "logit_scale": None, "length": length}


def _read_images() -> dict[str, Any]:
    """Draw how images are read; returns keys of the request."""
    gelu = st.segmented_control(
        "Activation",
        list(GELUS),
        format_func=lambda name: name[0].upper() + name[1:],
        key=draft.kept("gelu", "recognised"),
        required=True,
        help="OpenAI's weights need QuickGELU. The wrong one computes something else without any error.",
    )
    prepared = st.selectbox(
        "Preprocessing",
        list(PREPROCESSING),
        format_func=PREPROCESSING.__getitem__,
        key=draft.kept("preprocess", ""),
        help="Mean and standard deviation that images are normalised with, where no file beside the base says it. "
        "The wrong one costs many points of accuracy without any error.",
    )
    prepared = _own_preprocessing() if prepared == OWN else prepared
    brings_heads = any(model["role"] == "head" for model in draft.models().values())
    with st.container(horizontal=True, vertical_alignment="bottom"):
        heads = st.number_input(
            "Width of an attention head",
            min_value=1,
            max_value=4096,
            placeholder="recognised",
            key=draft.kept("heads"),
            help="64 in most models. Needed only where no file says it and the sizes are of no known architecture.",
        )
        scale = st.number_input(
            "Logit scale",
            min_value=0.01,
            max_value=1e6,
            placeholder="recognised",
            key=draft.kept("scale"),
            disabled=not brings_heads,
            help="The factor of the cosines between images and heads; CLIP ends its training at 100. Needed only "
            "where heads of unit norm are brought without it.",
        )
    scale = scale if brings_heads else None
    return {"quick_gelu": GELUS[gelu], "preprocess": prepared, "head_width": heads, "logit_scale": scale}


def _own_preprocessing() -> str:
    """Draw mean and deviation by colour; returns what the engine reads of them."""
    with st.container(horizontal=True):
        mean, std = (
            st.text_input(
                name,
                key=draft.kept(f"own.{part}", ""),
                placeholder="0.5, 0.5, 0.5",
                max_chars=100,
                help="Of red, green and blue, where colours go from 0 to 1.",
            )
            for name, part in (("Mean", "mean"), ("Deviation", "std"))
        )
    return f"mean={mean};std={std}"


@told_when_refused
def _ask_for_check(document: dict[str, Any]) -> None:
    row = ask("import", {**document, "check": True}, "Check of an import")
    st.session_state[CHECK], st.session_state[ASKED] = row.id, document
    st.rerun()


@told_when_refused
def _import(document: dict[str, Any]) -> None:
    request = {**document, "token": secrets.token_hex(8)}
    st.query_params[JOB] = ask("import", request, f"Import of {document['name']}").id
    st.rerun()


def _checked(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the check of these very files and settings found; draws its progress meanwhile."""
    if st.session_state.get(ASKED) != document:
        return None
    row = store().runs.find(st.session_state.get(CHECK, ""))
    if row is None:
        return None
    if row.active:
        show_progress(row, "bring", border=False)
        return None
    if row.state != "finished":
        st.error(plain(row.error or "The check was cancelled."), icon=":material/error:")
        return None
    return summary_of(row)


def _preview(summary: dict[str, Any]) -> None:
    """Draw what would be imported."""
    st.subheader("What will be in the zoo", anchor=False)
    for fault in summary["faults"]:
        field = FIELDS.get(fault["setting"], "")
        here = f" In this form it is “{field}”." if field else ""
        st.error(plain(f"{fault['text']}{here}"), icon=":material/error:")
    for warning in summary["warnings"]:
        st.warning(plain(warning), icon=":material/warning:")
    if summary["facts"]:
        draw_facts(
            [
                {
                    "Fact": FACTS.get(fact["name"], fact["name"]),
                    "Value": fact["value"],
                    "How it is known": fact["origin"],
                }
                for fact in summary["facts"]
            ]
        )
    draw_table(
        [
            {
                "Role": row["role"].capitalize(),
                "Name": row["name"],
                "Task": row["task"],
                "Format": row["layout"],
                "Values": row["dtype"],
                "MiB": round(row["bytes"] / 2**20, 1),
                "From the base, %": None if row["distance"] is None else round(100 * row["distance"], 2),
                "Notes": "; ".join(row["notes"]),
            }
            for row in summary["rows"]
        ],
        hide_index=True,
        width="stretch",
        placeholder="–",
        alt=f"{len(summary['rows'])} files with role, name, format and size",
    )
    if summary["notes"]:
        with st.expander(f"{len(summary['notes'])} parts are in order", icon=":material/check:", key="bring.notes"):
            st.markdown("\n".join(f"- {plain(note)}" for note in summary["notes"]))
    needed, free = bytes_text(summary["bytes"]), bytes_text(summary["free"])
    st.caption(f"{needed} will be written to {plain(summary['out'])}; {free} are free there.")
