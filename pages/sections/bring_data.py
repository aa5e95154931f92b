"""The images or texts of an import: uploaded, on the server or from the hub, each for one task."""

from pathlib import Path

import pandas as pd
import streamlit as st

from engine.errors import EngineError
from engine.zoo.modalities import MODALITIES, Modality
from engine.zoo.names import safe_name
from pages.sections import bring_draft as draft
from pages.sections.bring_files import hub_field, place_switch, remove_button, said
from pages.sections.uploader import uploader
from pages.shared.chrome import empty_state, plain
from pages.shared.nouns import called

NEW = "{} (a task of its own, out of domain)"


def sources() -> None:
    """Draw the ways to add images or texts."""
    where, kind = place_switch("images"), draft.kind()
    repository, place = kind.examples
    if where == "upload":
        uploader(key="bring.upload.images", accepts=kind.files, hint=kind.forms, folders=not kind.worded)
    elif where == "hub":
        hub_field("images", repository, of_data=True)
    else:
        _on_server(kind, place)
    said()


def chosen_images() -> None:
    """Draw the images or texts chosen so far, with the task that each is for."""
    items, kind = draft.images(), draft.kind()
    if not items:
        without = (
            "Without images nothing can be scored: the zoo can be merged and exported. A task has its images in one "
            "file or folder, split into train and test where they are."
        )
        empty_state(called("No images yet", kind), called(without, kind))
        return
    names = draft.trained()
    for ident, item in items.items():
        own = item["task"]
        options = list(dict.fromkeys([*names, own, *([name] if (name := _stem(item["path"])) else [])]))
        with st.container(horizontal=True, vertical_alignment="bottom", key=f"bring.row.{ident}"):
            st.selectbox(
                "Task",
                options,
                format_func=lambda name: name if name in names else NEW.format(name),
                key=draft.kept(f"task.{ident}", own),
                width=320,
                accept_new_options=True,
                help=called(
                    "The expert that was fine-tuned on these images, or a name of its own for images that none was.",
                    kind,
                ),
            )
            st.caption(plain(_described(item["path"], item["task"], kind)), width="stretch")
            remove_button(ident)


def brought_table(path: str, name: str, kind: Modality) -> pd.DataFrame | None:
    """Return the classes of some data: label, the data's own name, how many samples; None where there are none.

    Args:
        path: of the images or texts.
        name: of the task.
        kind: of data.
    """
    try:
        return _table(path, name, kind.name, _stamp(Path(path)))
    except EngineError:
        return None


def _on_server(kind: Modality, example: str) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        place = st.text_input(
            "File or folder on the server",
            key=draft.kept("images.place", ""),
            placeholder=example,
            max_chars=1000,
            help=called(
                "The images of one task, or a folder with those of several, below the folders that MERGELENS_ROOTS "
                "allows or in a zoo of the store.",
                kind,
            ),
        )
        st.button(
            "Add", key="bring.images.add", icon=":material/add:", disabled=not place, on_click=_add, args=(place,)
        )


def _add(place: str) -> None:
    try:
        found, left = draft.kind().find_brought(draft.readable(place))
    except (EngineError, OSError) as error:
        st.session_state[draft.PROBLEM] = str(error)
        return
    draft.add_images(found)
    if left:
        many = draft.kind().many
        st.session_state[draft.PROBLEM] = f"Left out, because they hold no {many}: {', '.join(left[:8])}."


def _described(path: str, name: str, kind: Modality) -> str:
    """Return what some data are, in a line: where, how many, of how many classes."""
    shown = draft.title_of_path(path)
    try:
        counts = _counts(path, name, kind.name, _stamp(Path(path)))
    except EngineError as error:
        return f"{shown}: {error}"
    table = brought_table(path, name, kind)
    classes = "" if table is None else f" of {len(table)} classes"
    return f"{shown}: {', '.join(f'{count:,} {split}' for split, count in counts.items())} {kind.many}{classes}"


def _stem(path: str) -> str:
    return safe_name(Path(path).stem if Path(path).is_file() else Path(path).name)


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@st.cache_data(max_entries=64, show_spinner="Looking at the data")
def _counts(path: str, name: str, kind: str, stamp: int) -> dict[str, int]:
    return dict(MODALITIES[kind].open_brought(Path(path), name).lengths)


@st.cache_data(max_entries=64, show_spinner="Looking at the data")
def _table(path: str, name: str, kind: str, stamp: int) -> pd.DataFrame:
    source = MODALITIES[kind].open_brought(Path(path), name)
    labels = source.labels("test")
    count = max(len(source.brought), int(labels.max(initial=-1)) + 1)
    named = source.brought or tuple(str(number) for number in range(count))
    samples = pd.Series(labels).value_counts().reindex(range(count), fill_value=0)
    return pd.DataFrame({"label": range(count), "own": list(named), "images": samples.to_numpy()})
