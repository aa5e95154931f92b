"""Bring your own: choose checkpoints on the server, see what they are, make a zoo of them."""

import secrets
from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.pipeline.zoos.import_checkpoints import read_summary
from engine.recipe import parse_recipe
from engine.rounding import bytes_text
from engine.store import Run
from engine.zoo.importing.request import parse_request
from engine.zoo.names import safe_name
from pages.forms.recipe import load
from pages.sections.bring_files import ITEMS, chooser, chosen_files
from pages.shared.chrome import empty_state, plain
from pages.shared.progress import show_progress
from pages.shared.service import ask
from pages.shared.state import store

CHECK, JOB = "bring.check", "import"  # the look at the files; the import itself, also in the address
ASKED = "bring.asked"  # what the last look was asked for
GELUS = {"recognised": None, "QuickGELU": True, "GELU": False}
DTYPES = {
    "keep": "As they are",
    "float32": "Single precision (float32)",
    "float16": "Half precision (float16)",
    "bfloat16": "Half precision (bfloat16)",
}
PREPROCESSING = {
    "": "Recognised",
    "openai": "OpenAI CLIP's",
    "inception": "Mean and deviation 0.5",
    "imagenet": "ImageNet's",
}
INTRO = """Whole pickled modules, Hugging Face folders, LoRA adapters and open_clip files become one zoo. Files are read
where they lie, and nothing in them is executed."""


def main() -> None:
    """Choose, correct, check, import."""
    st.title("Bring your own", anchor=False)
    st.write(INTRO)
    if _followed():
        return
    st.subheader("Checkpoints", anchor=False)
    chooser()
    if not st.session_state.get(ITEMS):
        empty_state(
            "Nothing chosen yet",
            "Add a pretrained base and the models fine-tuned from it. Heads are optional: without them and without "
            "images, weights are merged and exported, and nothing is scored.",
        )
        return
    items = chosen_files()
    document = {**_document(items), **_settings()}
    problem = _problem(items, document)
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
            "Import",
            key="bring.import",
            icon=":material/download_done:",
            disabled=not ready or bool(problem),
            type="primary" if ready else "secondary",
        ):
            _import(document)
    if summary is not None:
        _preview(summary)


def _document(items: list[dict[str, Any]]) -> dict[str, Any]:
    base = next((item["path"] for item in items if item["role"] == "base"), "")
    return {
        "base": base,
        "experts": [{"path": i["path"], "name": safe_name(i["name"])} for i in items if i["role"] == "expert"],
        "heads": [{"path": i["path"], "task": i["name"]} for i in items if i["role"] == "head"],
    }


def _settings() -> dict[str, Any]:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        title = st.text_input(
            "Title",
            key="bring.title",
            placeholder="My experts",
            max_chars=80,
            help="What the zoo is called in lists and context bars.",
        )
        name = safe_name(title or "my-experts").lower()
        place = st.text_input(
            "Zoo folder",
            key="bring.out",
            placeholder=str(store().root / "zoos" / name),
            max_chars=500,
            help="A new folder on the server; the zoo's manifest and converted weights are written there.",
        )
    with st.expander("How they are stored and read", icon=":material/tune:", key="bring.settings"):
        dtype = st.selectbox(
            "Weights",
            list(DTYPES),
            format_func=DTYPES.__getitem__,
            key="bring.dtype",
            help="The number format in which the converted weights are kept.",
        )
        gelu = st.segmented_control(
            "Activation",
            list(GELUS),
            key="bring.gelu",
            default="recognised",
            required=True,
            help="OpenAI's weights need QuickGELU. The wrong one computes something else without any error.",
        )
        prepared = st.selectbox(
            "Preprocessing",
            list(PREPROCESSING),
            format_func=PREPROCESSING.__getitem__,
            key="bring.preprocess",
            help="Mean and standard deviation that images are normalised with, where no file beside the base says it. "
            "The wrong one costs many points of accuracy without any error.",
        )
        heads = st.number_input(
            "Width of an attention head",
            min_value=1,
            max_value=4096,
            value=None,
            placeholder="recognised",
            key="bring.heads",
            help="64 in most models. Needed only where no file says it and the sizes are of no known architecture.",
        )
    out = place or str(store().root / "zoos" / name)
    given = {"quick_gelu": GELUS[gelu], "preprocess": prepared, "head_width": heads}
    return {"name": name, "title": title, "out": out, "dtype": dtype, **given}


def _problem(items: list[dict[str, Any]], document: dict[str, Any]) -> str:
    """Return what has to be corrected before anything can be checked; '' when nothing."""
    bases = sum(item["role"] == "base" for item in items)
    if bases != 1:
        return f"{bases or 'No'} file is the base; choose one, under Role." if bases < 2 else "More than one base."
    if not document["experts"]:
        return "No expert is chosen yet."
    try:
        parse_request(document)
    except EngineError as error:
        return str(error)
    return ""


def _ask_for_check(document: dict[str, Any]) -> None:
    row = ask("import", {**document, "check": True}, "Check of an import")
    st.session_state[CHECK], st.session_state[ASKED] = row.id, document
    st.rerun()


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
    return _summary(row)


def _preview(summary: dict[str, Any]) -> None:
    """Draw what would be imported."""
    st.subheader("What will be imported", anchor=False)
    for fault in summary["faults"]:
        st.error(plain(fault), icon=":material/error:")
    for warning in summary["warnings"]:
        st.warning(plain(warning), icon=":material/warning:")
    for fact in summary["facts"]:
        st.caption(plain(f"{fact['name']}: {fact['value']} ({fact['origin']})"))
    st.dataframe(
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
        alt=f"{len(summary['rows'])} files with role, name, format and size",
    )
    needed, free = bytes_text(summary["bytes"]), bytes_text(summary["free"])
    st.caption(f"{needed} will be written to {plain(summary['out'])}; {free} are free there.")


def _followed() -> bool:
    """Draw the progress or result of the import that the address names."""
    row = store().runs.find(st.query_params.get(JOB, ""))
    if row is None or row.kind != "import":
        st.query_params.pop(JOB, None)
        return False
    with st.container(border=True, key="bring.job"):
        if row.active:
            show_progress(row, "bring", border=False)
        elif row.state == "finished":
            _finished(row)
        else:
            st.error(plain(row.error or "The import was cancelled; nothing was written."), icon=":material/error:")
            st.button("Back to the files", key="bring.back", on_click=_unfollow)
    return True


def _finished(row: Run) -> None:
    summary = _summary(row)
    if summary is None:
        st.error("What this import found is no longer in the store; the zoo itself may still be there.")
        return
    experts = sum(item["role"] == "expert" for item in summary["rows"])
    st.success(f"**{plain(summary['name'])}** is a zoo now: {experts} experts, {bytes_text(summary['bytes'])}.")
    for warning in summary["warnings"]:
        st.warning(plain(warning), icon=":material/warning:")
    with st.container(horizontal=True):
        if st.button("Open in the lab", key="bring.lab", type="primary", icon=":material/science:"):
            load(parse_recipe({"zoo": summary["out"], "merge": {"method": "task_arithmetic"}}))
            st.switch_page("pages/lab.py")
        st.button("Import more", key="bring.more", on_click=_unfollow)


def _summary(row: Run) -> dict[str, Any] | None:
    folder = store().find(row.result, checksums=False) if row.result else None
    return read_summary(folder) if folder else None


def _unfollow() -> None:
    st.query_params.pop(JOB, None)


main()
