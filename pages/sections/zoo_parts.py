"""The parts of the zoo page: gallery, experts, prompts, licences."""

import numpy as np
import pandas as pd
import streamlit as st

from engine.catalog import ALIGNMENTS
from engine.catalog.datasets import find_dataset, recognise_dataset
from engine.catalog.prompts import USUAL
from engine.errors import EngineError
from engine.manifest import Expert, Manifest, Task, locate_zoo
from engine.outgoing import csv_table
from engine.pipeline.zoos.pictures import SEED
from engine.rounding import rounded
from engine.zoo.images.thumbnails import strip
from engine.zoo.making.records import recipe_in_words, training_records
from engine.zoo.making.targets import Target, target_record
from engine.zoo.modalities import modality_of
from pages.sections.published import expert_line, source_caption
from pages.sections.zoo_texts import sample_lines, text_gallery
from pages.shared.chrome import draw_facts, empty_state, error_state, percent, plain
from pages.shared.on_demand import recent
from pages.shared.one_of import one_of
from pages.shared.pictures import Gallery, gallery_of, offer_pictures, strip_of
from pages.shared.state import RunView
from pages.shared.tables import draw_table

SHOWN_CLASSES = 12  # at a time
SHOWN_IMAGES = 12  # of a class
CARD_IMAGES = 6
TILE = 48  # px a thumbnail is brought to, in whole steps
SPLIT_TITLES = {"test": "Test", "adapt": "Adapt", "val": "Validation", "train": "Train"}
DOMAINS = {"in": "in domain", "out": "out of domain", "shifted": "another task's classes, shifted"}
FACTS = {  # as origins in zoo.yaml name them
    "architecture": "Architecture",
    "head_width": "Width of attention heads",
    "quick_gelu": "Activation",
    "preprocess": "Preprocessing",
    "projection": "Projection",
    "logit_scale": "Logit scale",
    "dtype": "Number format",
    "templates": "Templates",
    "length": "Length",
    "output": "Output",
}
STATED = "stated in zoo.yaml"


def known_facts(manifest: Manifest) -> None:
    """Draw every fact about the models with the way in which it is known."""
    part = st.expander("Facts and their sources", icon=":material/fact_check:", key="zoo.facts", on_change="rerun")
    if part.open:
        with part:
            draw_facts(fact_rows(manifest))


def targets(zoo: str, manifest: Manifest) -> None:
    """Draw what the zoo was built to allow and what was measured of that, where it comes with a record of it."""
    record = target_record(locate_zoo(zoo))
    if record is None:
        return
    count = len(record.targets) + len(record.beside)
    said = f"{len(record.missed)} of {count} targets missed" if record.missed else f"all {count} targets met"
    title = f"What it was built to allow: {said}"
    part = st.expander(title, icon=":material/target:", key="zoo.targets", on_change="rerun")
    if part.open:
        with part:
            if record.missed:
                st.write(plain(record.missed_in_words()))
            draw_facts([_target_row(target) for target in (*record.targets, *record.beside)])
            st.caption(plain(record.provenance(modality_of(manifest).many)))


def _target_row(target: Target) -> dict[str, str]:
    met = "yes" if target.met else "no"
    return {"Target": target.target, "Aim": target.aim, "Measured": rounded(target.measured), "Met": met}


def fact_rows(manifest: Manifest) -> list[dict[str, str]]:
    """Return facts, their values and sources: what an import kept, else what zoo.yaml says."""
    backbone = manifest.backbone
    gelu = {True: "QuickGELU", False: "GELU", None: ""}[backbone.quick_gelu]
    prepared = backbone.preprocess.words if backbone.preprocess else ""
    rows = {
        "architecture": (backbone.architecture, STATED),
        "quick_gelu": (gelu, STATED) if gelu else ("that of the architecture", "zoo.yaml does not say"),
        "preprocess": (prepared, STATED) if prepared else ("OpenAI CLIP's", "zoo.yaml does not say; the default"),
    }
    rows = {name: rows[name] for name in modality_of(manifest).facts}
    rows |= {name: _origin(text) for name, text in backbone.origins.items()}
    order = sorted(rows, key=lambda name: (*FACTS, name).index(name))
    return [{"Fact": FACTS.get(n, n), "Value": rows[n][0], "How it is known": rows[n][1]} for n in order]


def _origin(text: str) -> tuple[str, str]:
    """Return the value and the source in an entry of origins, ``value (source)``; either may hold parentheses."""
    depth = 0 if text.endswith(")") else len(text)
    for place in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[place], 0)
        if not depth:
            return text[:place].rstrip(), text[place + 1 : -1]
    return text, STATED


def gallery(zoo: str, manifest: Manifest) -> None:
    """Draw every task's images or texts by class."""
    tasks = {task.name: task for task in manifest.tasks if task.data}
    if not tasks:
        many = modality_of(manifest).many
        said = f"This zoo names no {many}. Its experts can be merged, but nothing can be scored."
        empty_state(f"No {many}", said)
        return
    left, right = st.columns((2, 3), vertical_alignment="bottom")
    name = left.selectbox(
        "Task",
        list(tasks),
        format_func=lambda name: tasks[name].label,
        key="zoo.task",
        bind="query-params",
        help=f"The task whose {modality_of(manifest).many} are shown.",
    )
    task = tasks[name]
    if modality_of(manifest).shown == "words":
        text_gallery(zoo, task, right)
        return
    try:
        found = gallery_of(zoo, manifest, task, key=f"zoo.images.{task.name}")
    except (EngineError, OSError) as error:
        error_state(error, "Correct the zoo's files, then open this page again.")
        return
    if found is None:
        st.caption(plain(f"{task.label}: {task.data}. Pictures are made once, in the background, and kept."))
        return
    splits = list(found.pictures)
    with right:
        split = one_of(
            "Split",
            splits,
            default=splits[0],
            key=f"zoo.split.{task.name}",
            format_func=lambda split: f"{SPLIT_TITLES[split]} · {found.lengths[split]:,}",
            help="Methods adapt on one split and are scored on another; the counts are images.",
        )
    _classes(task, found, split or splits[0])
    _counts(task, found)


def _classes(task: Task, found: Gallery, split: str) -> None:
    labels, pictures = found.labels[split], found.pictures[split]
    if split not in found.counts:
        st.image(_row(pictures, np.arange(min(len(pictures), 2 * SHOWN_IMAGES))), alt=f"Images of {task.label}")
        st.caption("These images have no labels: methods adapt on them.")
        return
    chosen = st.multiselect(
        "Classes",
        task.classes,
        key=f"zoo.classes.{task.name}",
        bind="query-params",
        placeholder=f"All {len(task.classes)} classes, or choose some",
        help="None chosen: all of them, twelve at a time.",
    )
    st.caption(plain(f"{task.label}, {DOMAINS[task.role]}: {len(task.classes)} classes."))
    names = chosen or list(task.classes)
    pages = -(-len(names) // SHOWN_CLASSES)
    page = 1
    if pages > 1:
        page = st.pagination(pages, key=f"zoo.page.{task.name}.{split}")
    with st.grid("auto", min_column_width=340, gap="small"):
        for name in names[(page - 1) * SHOWN_CLASSES : page * SHOWN_CLASSES]:
            number = task.classes.index(name)
            with st.container(border=True, gap="xsmall"):
                st.markdown(f"**{plain(name)}** :small[{found.counts[split][number]:,} images]")
                rows = np.flatnonzero(labels == number)[:SHOWN_IMAGES]
                if len(rows):
                    st.image(_row(pictures, rows), width="stretch", alt=f"{len(rows)} {split} images of {name}")
                else:
                    st.caption("No image of this class.")
    how = f"a sample of each class, seed {SEED}" if found.sampled else "the first of each class"
    st.caption(plain(f"At most {SHOWN_IMAGES} of {found.lengths[split]:,} {split} images a class: {how}."))


def _row(pictures: np.ndarray, rows: np.ndarray) -> bytes:
    """Return images side by side, small ones enlarged by a whole factor."""
    return strip(np.asarray(pictures[rows]), columns=SHOWN_IMAGES // 2, zoom=max(1, TILE // pictures.shape[1]) * 2)


def _counts(task: Task, found: Gallery) -> None:
    for note in found.notes:
        st.caption(f":orange[:material/warning:] {plain(note)}")
    part = st.expander(
        "Images of each split and class", icon=":material/table_rows:", key="zoo.counts", on_change="rerun"
    )
    if not part.open:
        return
    table = pd.DataFrame({"class": task.classes, **{SPLIT_TITLES[s]: found.counts[s] for s in found.counts}})
    unlabelled = [f"{SPLIT_TITLES[s]} {n:,}" for s, n in found.lengths.items() if s not in found.counts]
    with part:
        draw_table(table, hide_index=True, width="stretch", key="zoo.counts.table")
        if unlabelled:
            st.caption(plain(f"Without labels: {', '.join(unlabelled)}."))


def experts(zoo: str, manifest: Manifest, run: RunView | None) -> None:
    """Draw a card for every expert."""
    if not manifest.experts:
        said = f"This zoo has a base and {modality_of(manifest).many}, but no experts yet. Train experts, above."
        empty_state("No experts", said)
        return
    report, rows = None if run is None else run.report, recent("register")
    records, kind = training_records(locate_zoo(zoo)), modality_of(manifest)
    seen = kind.shown == "picture"
    with st.grid("auto", min_column_width=260, gap="small"):
        for expert in manifest.experts:
            task = manifest.task_table.get(expert.task)
            with st.container(border=True, height="stretch", gap="xsmall"):
                st.markdown(f"**{plain(expert.name)}**")
                there = task is not None and bool(task.data)
                tiles = strip_of(zoo, manifest, task, CARD_IMAGES, report, rows) if there and seen else None
                if there and not seen:
                    sample_lines(zoo, task)
                if tiles is not None:
                    zoom = max(1, TILE // tiles.shape[1]) * 2
                    st.image(strip(tiles, zoom=zoom), width="stretch", alt=f"Images of {task.label}")
                st.caption(plain(f"Task: {task.label if task else expert.task}" + (_classes_of(task) if task else "")))
                if run is None or expert.name in run.report.experts:
                    _accuracies(expert.task, run)
                st.caption(plain(recipe_in_words(expert, records.get(expert.name), kind.many)))
                if expert.base:
                    _other_base(expert)
                if published := expert_line(expert.task, manifest, report):
                    st.markdown(published)
                st.caption(
                    plain(f"Source: {expert.source or 'not stated'}. Licence: {expert.licence or 'not stated'}.")
                )
    pictured = [manifest.task_table[e.task] for e in manifest.experts if e.task in manifest.task_table]
    offer_pictures(zoo, [task for task in pictured if task.data and seen], "zoo.experts")
    if run is None:
        st.caption("Accuracies appear once a run of this zoo is shown: run a recipe in the lab.")
    else:
        st.caption(plain(f"Accuracies of the run shown: {run.title}."))
    source_caption(manifest)


def _other_base(expert: Expert) -> None:
    """Say of an expert of another base whether its units are in the order of the zoo's."""
    if expert.aligned:
        row = ALIGNMENTS.get(expert.aligned)
        st.caption(plain(f"Of another base; its order of units: {row.title if row else expert.aligned}."))
    else:
        st.caption(":orange[:material/warning:] Of another base, not aligned: a merge with it is refused.")


def _classes_of(task: Task) -> str:
    return f", {len(task.classes)} classes, {DOMAINS[task.role]}"


def _accuracies(task: str, run: RunView | None) -> None:
    if run is None:
        return
    values = {state: run.report.accuracy.get(state, {}).get(task) for state in ("pretrained", "expert", "merged")}
    if values["expert"] is not None:
        st.markdown(
            f":small[Pretrained {percent(values['pretrained'])} · expert **{percent(values['expert'])}** · "
            f"merged :orange[**{percent(values['merged'])}**]]"
        )


def prompts(manifest: Manifest) -> None:
    """Draw the prompts and class names that zero-shot heads are made from."""
    tasks = {task.name: task for task in manifest.tasks}
    if not tasks:
        empty_state("No tasks", "This zoo lists no tasks, so there are no prompts.")
        return
    left, right = st.columns(2)
    name = left.selectbox(
        "Task",
        list(tasks),
        format_func=lambda name: tasks[name].label,
        key="zoo.task",
        bind="query-params",
        help="The task whose head is built from these prompts.",
    )
    task = tasks[name]
    chosen = right.selectbox(
        "Class",
        task.classes,
        key=f"zoo.prompt.{task.name}",
        bind="query-params",
        help="The class whose name is put into the templates.",
    )
    rows = _prompts_of(task, chosen)
    table = pd.DataFrame(rows, columns=["template", "prompt"])
    draw_table(table, hide_index=True, width="stretch", key="zoo.prompts.table")
    origin = "Its heads come with the zoo" if manifest.heads else "The base's text encoder gives its heads"
    st.caption(
        plain(
            f"{task.prompts_label[0].upper()}{task.prompts_label[1:]}. A class's row in the head is the mean of its "
            f"prompts' normalised text embeddings, normalised again. {origin}.{_source_of(task)}"
        )
    )
    st.download_button(
        "Download all prompts",
        lambda: _all_prompts(task),
        file_name=f"{task.name}-prompts.csv",
        mime="text/csv",
        key="zoo.prompts.csv",
        on_click="ignore",
    )


def _prompts_of(task: Task, name: str) -> list[tuple[str, str]]:
    """Return every template with the prompt that it makes of a class."""
    words = task.words.get(name, (name,))
    return [(t, t.replace("{}", word)) for word in words for t in task.templates or (USUAL,)]


def _source_of(task: Task) -> str:
    """Return where published templates of a task are from, as a sentence."""
    row = find_dataset(task.dataset or "") if task.template_set else None
    return f" Templates: {row.prompts[task.template_set].source}." if row is not None else ""


def _all_prompts(task: Task) -> bytes:
    rows = [(name, *row) for name in task.classes for row in _prompts_of(task, name)]
    return csv_table(pd.DataFrame(rows, columns=["class", "template", "prompt"])).encode()


def licences(manifest: Manifest) -> None:
    """Draw the origin and the licence of everything in the zoo."""
    rows = [("Expert", e.name, e.source, e.licence, "") for e in manifest.experts]
    for task in manifest.tasks:
        known = recognise_dataset(task.dataset or task.name)
        kind = modality_of(manifest).many.capitalize()
        rows.append((kind, task.label, task.source, task.licence, known.homepage if known and task.dataset else ""))
    table = pd.DataFrame(rows, columns=["kind", "name", "source", "licence", "homepage"])
    table[["source", "licence"]] = table[["source", "licence"]].replace("", "not stated")
    if not table["homepage"].any():
        table = table.drop(columns="homepage")
    draw_table(table, hide_index=True, width="stretch", key="zoo.licences")
    st.caption(
        "As zoo.yaml states them. Where nothing is stated, ask the source before you publish results or weights."
    )
