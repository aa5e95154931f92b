"""The form of an alignment: experts of another base, a method with its equation and parameters, their names."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from engine.catalog import ALIGNMENTS, AlignmentRow
from engine.errors import EngineError
from engine.manifest import Expert, Manifest
from engine.pipeline.zoos.aligning import AlignRequest, experts_to_align
from engine.zoo.folder import Zoo
from engine.zoo.modalities import modality_of
from pages.forms.params import method_notes, param_fields, seeded
from pages.shared.chrome import plain
from pages.shared.zoos import zoo_folder

PREFIX = "align."
MEMORY = "align.memory"  # parameters of every method that was looked at


def align_form(zoo: str, manifest: Manifest, there: Sequence[Expert]) -> dict[str, Any] | None:
    """Draw the form and return the request, None while it cannot be carried out.

    Args:
        zoo: name or folder.
        manifest: of the zoo.
        there: experts that can be aligned.
    """
    names = [expert.name for expert in there]
    chosen = st.multiselect(
        "Experts",
        names,
        key=seeded(f"{PREFIX}experts.{zoo}.{'.'.join(names)}", names),
        placeholder="Choose experts",
        help="Those that start from another base and are not aligned.",
    )
    row = _method(manifest)
    memory = st.session_state.setdefault(MEMORY, {}).setdefault(row.name, {})
    params = param_fields(row, memory, f"{PREFIX}{row.name}")
    request = {"zoo": zoo, "experts": chosen, "method": row.name, "params": params, "called": _called(row)}
    listed, problem = _listed(zoo, (zoo_folder(zoo) / "zoo.yaml").stat().st_mtime_ns, request)
    if problem:
        st.error(plain(problem), icon=":material/error:")
        return None
    many = "their entries change" if len(chosen) > 1 else "its entry changes"
    st.caption(plain(f"In the zoo: {', '.join(listed)}{'' if request['called'] else f'; {many}'}."))
    return request


@st.cache_data(max_entries=64, ttl=60, show_spinner=False)
def _listed(zoo: str, modified: int, request: dict[str, Any]) -> tuple[list[str], str]:
    """Return the names that aligned experts will have, or why they cannot be aligned."""
    try:
        return list(experts_to_align(Zoo.open(zoo), AlignRequest.parse(request)).values()), ""
    except (EngineError, OSError) as error:
        return [], str(error)


def _method(manifest: Manifest) -> AlignmentRow:
    with st.container(border=True):
        name = st.selectbox(
            "Method",
            list(ALIGNMENTS),
            format_func=lambda name: ALIGNMENTS[name].title,
            key=seeded(f"{PREFIX}method", next(iter(ALIGNMENTS))),
            help="How the order of the units is found; each method is a row of the catalogue.",
        )
        method_notes(ALIGNMENTS[name], modality_of(manifest))
    return ALIGNMENTS[name]


def _called(row: AlignmentRow) -> str:
    """Ask whether an expert stays as it is; returns what the aligned one beside it is called, '' where none is."""
    keep = st.toggle(
        "Keep each expert and list the aligned one beside it",
        key=seeded(f"{PREFIX}keep", False),
        help="So several orders of one expert can be compared, controls among them. Else the expert's entry changes: "
        "it names the aligned weights, and its own file stays in the folder.",
    )
    if not keep:
        return ""
    name = st.text_input(
        "Called",
        key=seeded(f"{PREFIX}called.{row.name}", row.name),
        max_chars=64,
        help="The aligned expert is listed under its task's name, a dash and this word.",
    )
    return name.strip() or row.name
