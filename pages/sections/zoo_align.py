"""The part of the zoo page that aligns experts of another base: why, the form, the work going on, what it did."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

from engine.catalog import ALIGNMENTS, resolve
from engine.catalog.words import choice_title
from engine.errors import EngineError
from engine.figures.alignment import aligned_table, moved_table
from engine.figures.drawing import expert_titles
from engine.manifest import Manifest, locate_zoo
from engine.pipeline.zoos.aligning import images_in_words, place_problem, unaligned
from engine.recipe import Recipe, parse_recipe
from engine.store import Run
from engine.zoo.folder import Zoo
from engine.zoo.modalities import modality_of
from pages.forms.align import align_form
from pages.forms.recipe import load
from pages.sections.zoo_copy import copy_form, made_copy
from pages.sections.zoo_work import dismiss, followed, work
from pages.shared.chrome import duration, plain
from pages.shared.people import desk
from pages.shared.service import ask, told_when_refused
from pages.shared.state import RUN, open_run, store
from pages.shared.tables import draw_table

ALIGN = "Align experts"  # the view of the zoo page
LOOKED_BACK = 60  # runs in which an aligned expert is looked for
NUMBER = st.column_config.NumberColumn
COLUMNS = {
    "listed": "In the zoo",
    "expert": "Made from",
    "before": NUMBER("Inner product before", format="%.4g", help="Of the expert's weights with the zoo's base"),
    "after": NUMBER("After", format="%.4g", help="The same, with the units reordered"),
    "apart": NUMBER(
        "Difference of features", format="%.1e", help="The largest, relative to the largest feature, in float64"
    ),
}


def align(zoo: str, manifest: Manifest) -> str | None:
    """Draw the alignment of experts; returns a copy of the zoo that was just made, to be shown instead."""
    made = made_copy(zoo)
    if made:
        return made
    row = followed(zoo, "align")
    if row is not None:
        work(
            row,
            "align",
            made=partial(_made, zoo=zoo, manifest=manifest),
            stopped="Experts that were aligned by then are kept, and none is in the zoo yet.",
            again="Experts that were aligned by then are not aligned again.",
        )
        if row.active:
            return None
    there = unaligned(manifest)
    if not there:
        named = ", ".join(
            f"{e.name} ({ALIGNMENTS[e.aligned].title if e.aligned in ALIGNMENTS else e.aligned})"
            for e in manifest.experts
            if e.base
        )
        st.caption(plain(f"Every expert of another base is aligned: {named}."))
        return None
    st.subheader("Align experts of another base", anchor=False)
    st.write(
        f"Not aligned yet: {plain(', '.join(expert.name for expert in there))}. The units of another base stand in "
        "another order than those of this zoo's, so the entries that a merge adds up do not belong together, and a "
        "merge with such an expert is refused. An alignment puts its units into the order of this zoo's base. What the "
        "expert computes stays the same, which is checked in float64 before anything is written."
    )
    if problem := place_problem(Zoo.open(zoo)) or desk().zoo_refusal(zoo):
        st.info(plain(problem), icon=":material/info:")
        return copy_form(zoo, manifest, "align", "align", "aligned")
    request = align_form(zoo, manifest, there)
    many = len(request["experts"]) if request else 0
    st.button(
        f"Align {many} experts" if many > 1 else "Align the expert",
        key="align.go",
        type="primary",
        icon=":material/swap_vert:",
        disabled=request is None,
        on_click=_submit,
        args=(request,),
    )
    return None


@told_when_refused
def _submit(request: dict[str, Any]) -> None:
    ask("align", request, f"{ALIGNMENTS[request['method']].title}: {', '.join(request['experts'])}")


def _made(row: Run, zoo: str, manifest: Manifest) -> None:
    folder = store().find(row.result, checksums=False)
    if folder is None:
        return
    document = json.loads((folder / "aligned.json").read_text("utf-8"))
    many = "1 aligned expert" if len(document) == 1 else f"{len(document)} aligned experts"
    st.success(f"{plain(row.name)}: {many} in the zoo, in {duration(row.elapsed)}.")
    draw_table(aligned_table(document), hide_index=True, key="align.table", column_config=COLUMNS)
    st.caption(plain(_how(document, modality_of(manifest).many)))
    st.markdown("**Units that moved**")
    table = moved_table(document)
    shares = {name: NUMBER(name, format="%.0f %%") for name in table.columns[1:]}
    draw_table(table, hide_index=True, key="align.moved", column_config={"group": "Group", **shares})
    _onwards(row, zoo, manifest, document)


def _how(document: Mapping[str, Any], many: str) -> str:
    """Return by which method the experts were aligned and which samples were looked at, in sentences."""
    first, lines = next(iter(document.values())), {}
    for name, record in document.items():
        lines.setdefault(images_in_words(record, many), []).append(name)
    method = ALIGNMENTS[first["method"]]
    fields = method.params.model_fields
    settings = ", ".join(
        f"{(fields[name].title or name).lower()} {choice_title(str(value))}" for name, value in first["params"].items()
    )
    looked = "; ".join(f"{', '.join(names)} {line}" if len(lines) > 1 else line for line, names in lines.items())
    drawn = (
        "Nothing but the method draws by its seed"
        if "seed" in first["params"]
        else "Nothing is drawn, so there is no seed"
    )
    return f"{method.title} ({settings}): {looked}. {many.capitalize()} lie evenly spread over their split. {drawn}."


def _onwards(row: Run, zoo: str, manifest: Manifest, document: Mapping[str, Any]) -> None:
    """Offer what to look at next: the path from the base to each expert in a run that has it, else their merge."""
    runs = {name: found for name in document if (found := _address(zoo, name))}
    for name, query in runs.items():
        st.page_link(
            "pages/premerging.py",
            label=f"The loss barrier from the base to {plain(name)}",
            icon=":material/arrow_forward:",
            query_params=query,
        )
    if not runs:
        st.caption(
            "What lies between the base and an aligned expert, its loss barrier, is on the page Before merging, under "
            "Alignment, once a run has it."
        )
    with st.container(horizontal=True):
        recipe = _recipe(zoo, manifest, list(document))
        if recipe and st.button("Merge them in the lab", key="align.merge", icon=":material/science:"):
            load(recipe)
            st.switch_page("pages/lab.py", query_params={})  # a bare switch refuses bound parameters
        st.button("Dismiss", key="align.dismiss", on_click=dismiss, args=(row.id,))


def _address(zoo: str, expert: str) -> dict[str, str]:
    """Return the address of the path from the base to an expert, in the newest run of the zoo that has it."""
    for row in store().runs.list(kinds=("run",), states=("finished",), limit=LOOKED_BACK):
        try:
            if locate_zoo(parse_recipe(row.request.get("recipe")).zoo) != locate_zoo(zoo):
                continue
            report = open_run(row.id).report
        except (EngineError, OSError):
            continue
        if expert in report.experts:
            title = expert_titles(report, report.experts)[list(report.experts).index(expert)]
            ends = {"premerging.start": "Pretrained", "premerging.end": title, "premerging.shuffle": "false"}
            return {RUN: row.id, "premerging.view": "Alignment", **ends}
    return {}


def _recipe(zoo: str, manifest: Manifest, names: list[str]) -> Recipe | None:
    """Return a recipe that merges aligned experts with the zoo's own of other tasks; None where there is one alone."""
    table, away = manifest.expert_table, {expert.name for expert in unaligned(manifest)}
    chosen = {table[name].task: name for name in names if name in table}
    for expert in manifest.experts:
        if expert.name not in away:
            chosen.setdefault(expert.task, expert.name)
    return resolve(Recipe(zoo=zoo, experts=tuple(chosen.values()))) if len(chosen) > 1 else None  # type: ignore[arg-type]
