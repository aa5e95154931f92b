"""Classes of brought data: what each is called and, of images, whose templates its name is put into."""

from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from engine.catalog.datasets import KnownDataset, find_dataset, known_dataset
from engine.catalog.prompts import PROMPT_SETS, USUAL, prompts_in_words
from engine.errors import EngineError
from engine.zoo.images.brought import known_classes, open_brought
from engine.zoo.importing.documents import config_beside
from engine.zoo.importing.texts.classes import class_names, described_classes, stated_classes
from engine.zoo.names import safe_name
from pages.sections import bring_draft as draft
from pages.sections.bring_data import brought_table
from pages.shared.chrome import empty_state, plain
from pages.shared.nouns import called
from pages.shared.tables import draw_table, edit_table

WORDS = "bring.words"  # ident → what was chosen for these images
USUAL_SET, GENERAL_SET, OWN_SET = "usual", "general", "own"
GENERAL = "imagenet"  # its templates fit any kind of photograph
SHOWN = 3


def class_step() -> None:
    """Draw classes, and prompts of images, of one task after the other."""
    items, kind = draft.images(), draft.kind()
    if not items:
        what = "Classes and prompts belong to images." if kind.worded else "Classes belong to images."
        empty_state(
            called("No images, no classes", kind), called(f"{what} Without any, this step is not needed.", kind)
        )
        return
    chosen = next(iter(items))
    if len(items) > 1:
        chosen = st.segmented_control(
            "Task",
            list(items),
            format_func=lambda ident: items[ident]["task"],
            key=draft.kept("classes.of", chosen),
            required=True,
            label_visibility="collapsed",
            help="The task whose classes are shown.",
        )
    chosen = chosen if chosen in items else next(iter(items))
    (_task if kind.worded else _named)(chosen, items[chosen])


def words() -> dict[str, Any]:
    """Return the key of the request that holds what was chosen here; tasks left as they were are not in it."""
    found = st.session_state.get(WORDS, {})
    items = draft.images()
    asked = {safe_name(items[i]["task"]): said for i, said in found.items() if i in items and said}
    return {"prompts": asked} if asked else {}


def _task(ident: str, item: dict[str, str]) -> None:
    name, path = safe_name(item["task"]), item["path"]
    table = brought_table(path, name, draft.kind())
    if table is None:
        st.error("These images cannot be read; go back and choose others.", icon=":material/error:")
        return
    row = _known(path, name)
    if any(other["role"] == "head" and other["name"] == item["task"] for other in draft.models().values()):
        st.caption(":material/info: A head for this task is brought, so these prompts are not used.")
    whose = _prompt_set(ident, row)
    left, right = st.columns((3, 2), gap="medium")
    with left:
        classes, names = _classes(ident, table, row, whose)
    with right:
        templates = _templates(ident, whose, row)
    if classes:
        shown = "; ".join(f"“{template.replace('{}', names[0])}”" for template in templates[:SHOWN])
        st.caption(plain(f"The first class, {classes[0]}, is described by {shown}{' …' * (len(templates) > SHOWN)}"))
    default = whose == _sets(row)[0] and names == _words(row, whose, classes) and not _unnamed(table, row)
    said = st.session_state.setdefault(WORDS, {})
    said[ident] = None if default else _asked(row, whose, classes, names, templates)


def _named(ident: str, item: dict[str, str]) -> None:
    """Draw the classes of a task whose expert brings its classifier."""
    table = brought_table(item["path"], safe_name(item["task"]), draft.kind())
    own = [] if table is None else list(table["own"])
    start = _names_of(item, own)
    said = st.session_state.setdefault(WORDS, {})
    if not start:
        said[ident] = None
        st.caption(
            ":material/info: Classes are read from these texts when the zoo is checked. Where labels are numbers of a "
            "scale, the expert is scored by its correlation with them."
        )
        return
    shown = pd.DataFrame({"Class": start})
    if table is not None and len(own) == len(start):
        shown.insert(0, "Texts", list(table["images"]))
        shown.insert(0, "Label", own)
    st.caption("In the order of the classifier. Names come from the expert's config, a description or the texts.")
    found = _edited(
        ident,
        shown,
        disabled=["Label", "Texts"],
        column_config={
            "Class": st.column_config.TextColumn(required=True, max_chars=200, help="Double-click to change it."),
            "Texts": st.column_config.NumberColumn(help="Test texts of this class."),
        },
    )
    names = [str(name).strip() or before for name, before in zip(found["Class"], start, strict=True)]
    said[ident] = None if names == start else {"classes": names}


def _names_of(item: dict[str, str], own: list[str]) -> list[str]:
    """Return what the engine would call the classes of some texts."""
    expert = next(
        (
            model["path"]
            for model in draft.models().values()
            if model["role"] == "expert" and safe_name(model["name"]) == safe_name(item["task"])
        ),
        None,
    )
    brought = [] if all(name.isdigit() for name in own) else own
    try:
        config = config_beside(expert) if expert else {}
        stated = described_classes(item["path"]) or stated_classes(config)
        return class_names(config, item["path"], brought, max(len(own), len(stated)))
    except EngineError:
        return own


def _asked(row: KnownDataset | None, whose: str, classes: list[str], names: list[str], templates: list[str]) -> dict:
    """Return what is asked of the engine: a published set by its name as long as nothing of it was changed."""
    differing = {own: [name] for own, name in zip(classes, names, strict=True) if name != own}
    listed = {} if row is not None else {"classes": classes}
    if whose in PROMPT_SETS and names == _words(row, whose, classes):
        return {"template_set": whose}
    return {**listed, "templates": templates, "words": differing}


def _prompt_set(ident: str, row: KnownDataset | None) -> str:
    sets = _sets(row)
    titles = {
        **{name: title for name, title in PROMPT_SETS.items()},
        USUAL_SET: "CLIP's usual",
        GENERAL_SET: "OpenAI's for ImageNet",
        OWN_SET: "Own",
    }
    whose = st.segmented_control(
        "Templates",
        sets,
        format_func=titles.__getitem__,
        key=draft.kept(f"set.{ident}", sets[0]),
        required=True,
        help="A head is built from these sentences. Accuracies differ by points between sets, so the one in use is "
        "named wherever they are shown.",
    )
    whose = whose if whose in sets else sets[0]
    if row is not None:
        lacking = " and ".join(title for name, title in PROMPT_SETS.items() if name not in row.prompts)
        there = f" There is none of {lacking} for it." if lacking else ""
        st.caption(plain(f"Recognised as {row.title}. In use: {_in_words(whose, row)}.{there}"))
    else:
        st.caption(plain(f"In use: {_in_words(whose, row)}."))
    return whose


def _in_words(whose: str, row: KnownDataset | None) -> str:
    if whose == OWN_SET:
        return "templates of your own"
    if whose == GENERAL_SET:
        return f"{prompts_in_words('openai', _given(whose, row))} for ImageNet"
    return prompts_in_words(whose if whose in PROMPT_SETS else "", _given(whose, row) if whose in PROMPT_SETS else ())


def _sets(row: KnownDataset | None) -> list[str]:
    return [*row.prompts, OWN_SET] if row is not None else [USUAL_SET, GENERAL_SET, OWN_SET]


def _given(whose: str, row: KnownDataset | None) -> list[str]:
    """Return the templates of a set; of own ones those that they start from."""
    if row is not None:
        return list(row.prompts[whose if whose in row.prompts else row.default_set].templates)
    return list(known_dataset(GENERAL).prompts["openai"].templates) if whose == GENERAL_SET else [USUAL]


def _words(row: KnownDataset | None, whose: str, classes: list[str]) -> list[str]:
    """Return what prompts call the classes, as the set has it."""
    found = row.prompts[whose if whose in row.prompts else row.default_set].words if row is not None else {}
    return [found[name][0] if name in found else name for name in classes]


def _unnamed(table: pd.DataFrame, row: KnownDataset | None) -> bool:
    """Return whether the data have numbers for labels, and nobody names them."""
    return row is None and all(str(name).isdigit() for name in table["own"])


def _classes(ident: str, table: pd.DataFrame, row: KnownDataset | None, whose: str) -> tuple[list[str], list[str]]:
    """Draw the table of classes; returns them in label order, and what prompts call them."""
    classes = list(row.classes) if row is not None else [str(name).replace("_", " ").strip() for name in table["own"]]
    if len(set(classes)) < len(classes):
        classes = [str(name) for name in table["own"]]
    counts = dict(zip(table["own"], table["images"], strict=True)) if row is None else {}
    start = pd.DataFrame({"Class": classes, "In prompts": _words(row, whose, classes)})
    if counts:
        start.insert(1, "Images", list(counts.values()))
    found = _edited(
        f"{ident}.{whose if whose in PROMPT_SETS else ''}",
        start,
        disabled=["Class", "Images"],
        column_config={
            "In prompts": st.column_config.TextColumn(required=True, max_chars=200, help="Double-click to change it."),
            "Images": st.column_config.NumberColumn(help="Test images of this class."),
        },
    )
    names = [str(name).strip() or own for name, own in zip(found["In prompts"], classes, strict=True)]
    return classes, names


def _templates(ident: str, whose: str, row: KnownDataset | None) -> list[str]:
    """Draw the templates; returns those in use."""
    given = _given(whose, row)
    start = pd.DataFrame({"Template": given})
    if whose != OWN_SET:
        draw_table(start, hide_index=True, width="stretch", height=_height(len(start)))
        return given
    found = _edited(
        f"{ident}.templates",
        start,
        num_rows="dynamic",
        column_config={
            "Template": st.column_config.TextColumn(
                required=True, max_chars=300, validate=r"^[^{}]*\{\}[^{}]*$", help="{} stands for the class."
            )
        },
    )
    kept = [str(text).strip() for text in found["Template"].dropna() if str(text).count("{}") == 1]
    if not kept:
        st.caption(
            f":material/info: A template has one {{}}, where the class goes; “{plain(USUAL)}” is used meanwhile."
        )
    return kept or [USUAL]


def _edited(name: str, start: pd.DataFrame, **options: Any) -> pd.DataFrame:
    """Draw a table to be edited, as it was left; as it is given, where that is another than before."""
    key, before, after, made = (f"bring.{part}.{name}" for part in ("edit", "before", "after", "start"))
    if not start.equals(st.session_state.get(made, start)):
        for part in (key, before, after):
            st.session_state.pop(part, None)
    st.session_state[made] = start
    if key not in st.session_state or before not in st.session_state:
        st.session_state[before] = st.session_state.get(after, start)
    found = edit_table(
        st.session_state[before],
        key=key,
        hide_index=True,
        width="stretch",
        height=_height(len(st.session_state[before]) + bool(options.get("num_rows"))),
        **options,
    )
    st.session_state[after] = found
    return found


def _height(rows: int) -> int:
    return 35 * min(max(rows, 1) + 1, 12) + 3


def _known(path: str, name: str) -> KnownDataset | None:
    """Return the data set of the catalogue that some images are."""
    try:
        return find_dataset(_dataset(path, name, Path(path).stat().st_mtime_ns))
    except (EngineError, OSError):
        return None


@st.cache_data(max_entries=64, show_spinner=False)
def _dataset(path: str, name: str, stamp: int) -> str:
    return str(known_classes(open_brought(Path(path), name).source, name).get("dataset", ""))
