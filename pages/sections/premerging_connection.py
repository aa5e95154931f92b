"""The section on networks that do not share a start: the path before and after alignment, matched units, ZipIt."""

from pathlib import Path

import streamlit as st

from engine.catalog import ALIGNMENTS
from engine.figures.connection import barriers, connection_figure, units_table, zip_figure
from engine.figures.drawing import number
from engine.pipeline.viewing.on_weights import PRETRAINED
from engine.pipeline.views.connection import CONNECTION
from pages.forms.params import method_notes
from pages.sections.premerging_measures import titles_of
from pages.shared.chrome import figure, theme
from pages.shared.on_demand import view_on_demand
from pages.shared.state import RunView
from pages.shared.tables import draw_table

NUMBER = st.column_config.NumberColumn
UNITS = {
    "group": "Group",
    "moved": NUMBER("Out of place (%)", format="%.0f", help="Before the matching, where units were shuffled"),
    "found": NUMBER("Put right (%)", format="%.0f", help="Of all units of the group, after the matching"),
    "before": NUMBER("Likeness before", format="%.3f", help="Mean cosine between units in the same place"),
    "after": NUMBER("Likeness after", format="%.3f"),
}


def connection(run: RunView) -> None:
    """Draw the path between two models before and after their units are matched."""
    st.write(
        "The units of a network can be reordered without changing what it computes. Two networks that learned by "
        "themselves have theirs in different orders, and the path between them crosses a barrier; matching lowers it. "
        "Experts of one base never need it: their units match themselves. Shuffling one expert first shows what the "
        "barrier would be, and whether the matching undoes it."
    )
    with st.expander("Why a zoo needs no re-basin, and what does", icon=":material/device_hub:", key="premerging.twin"):
        st.write(
            "All experts of a zoo start from its base, and fine-tuning moves a unit far less than the way to another "
            "unit. A base that was pretrained from another seed has its units elsewhere: "
            "`python -m engine zoo build mini8 --out DIR --twin` makes such a twin beside the zoo itself. "
            "`python -m engine zoo finetune ZOO --from DIR-twin --task TASK` trains an expert from the twin's base "
            "with the zoo's heads; merging it is refused until its units are in the order of the zoo's base, which the "
            "page Zoo does (*Align experts*), and `python -m engine zoo align ZOO`."
        )
        st.page_link(
            "pages/experiments.py",
            label="The claim with its controls, on four pairs of experts",
            icon=":material/arrow_forward:",
            query_params={"experiment": "zoo-without-rebasin"},
        )
    titles = {**titles_of(run), PRETRAINED: "Pretrained"}
    first, second, third, rest = st.columns((2, 2, 2, 1), vertical_alignment="bottom")
    start = first.selectbox(
        "Start",
        list(titles),
        format_func=titles.__getitem__,
        key="premerging.start",
        bind="query-params",
        help="Its units stay in place.",
    )
    end = second.selectbox(
        "End",
        [name for name in titles if name != start],
        format_func=titles.__getitem__,
        key="premerging.end",
        bind="query-params",
        help="Its units are reordered.",
    )
    method = third.selectbox(
        "Matching",
        list(ALIGNMENTS),
        format_func=lambda name: ALIGNMENTS[name].title,
        key="premerging.matching",
        bind="query-params",
        help="A row of the catalogue's alignments.",
    )
    with rest.popover("Settings", icon=":material/tune:", key="premerging.connection.settings"):
        shuffle = st.toggle(
            "Shuffle the end first",
            True,
            key="premerging.shuffle",
            bind="query-params",
            help="Its function stays the same.",
        )
        seed = st.number_input(
            "Seed of the shuffle",
            0,
            key="premerging.shuffle.seed",
            bind="query-params",
            value=0,
            help="Draws the order of the units.",
        )
        method_notes(ALIGNMENTS[method])
    request = CONNECTION.ask(run.report.recipe, start=start, end=end, method=method, shuffle=shuffle, seed=seed)
    folder = view_on_demand(
        run,
        CONNECTION,
        request,
        key="premerging.connection",
        label="Match and follow the path",
        icon=":material/route:",
        takes=f"{request.points} models on three paths, up to {request.images} images of each end's task.",
        title=f"{ALIGNMENTS[method].title}: {titles[start]} to {titles[end]}",
        draw=_connection,
    )
    if folder is not None:
        _connection(run, folder)


def _connection(run: RunView, folder: Path) -> None:
    document, titles = CONNECTION.read(folder), {**titles_of(run), PRETRAINED: "Pretrained"}
    start, end = document["start"], document["end"]
    ends = (titles[start], titles[end] + (", shuffled" if document["shuffle"] else ""))
    counts = sorted({found["images"] for found in document["tasks"].values()})
    figure(
        connection_figure(document, ends, theme()),
        key="premerging.connection.figure",
        run=run,
        unit="Mean cross-entropy over the ends' tasks; REPAIR on unlabelled images of other splits",
        count=f"{counts[0]}–{counts[-1]}" if len(counts) > 1 else str(counts[0]),
    )
    found = barriers(document)
    st.write(
        f"Loss barrier: **{number(found['plain'], 3)}** nats as they are, **{number(found['aligned'], 3)}** matched, "
        f"**{number(found['repaired'], 3)}** repaired as well."
    )
    st.subheader("Matched units", anchor=False)
    draw_table(units_table(document), hide_index=True, key="premerging.units", column_config=UNITS)
    st.subheader("What ZipIt would merge", anchor=False)
    figure(
        zip_figure(document, theme()),
        key="premerging.zip",
        run=run,
        unit="Groups into which the most correlated hidden units are merged until half are left, in percent",
        count=f"{document['units']['zip_images']}",
    )
