"""Below the table of experiments: networks without a zoo, and what bundled zoos cannot show."""

import pandas as pd
import streamlit as st

from engine.experiments import Finding
from engine.experiments.claims import effect
from engine.experiments.elsewhere import elsewhere
from engine.lessons import network_names, read_networks
from pages.shared.chrome import plain
from pages.shared.tables import draw_table

COLUMNS = {
    "Paper": st.column_config.TextColumn("Paper", width="medium"),
    "Part": st.column_config.TextColumn("Part", width=150),
    "Shows": st.column_config.TextColumn("Shows", width="medium"),
    "Needs": st.column_config.TextColumn("Needs", width="large"),
    "Command": st.column_config.TextColumn("Command", width="large"),
}


FOUND = {
    "Clause": st.column_config.TextColumn("Clause", width="large"),
    "Here": st.column_config.TextColumn("Here", width=230),
    "Difference": st.column_config.TextColumn("Difference", width=190, help="In nats, with its 95 % interval"),
}


def draw_networks() -> None:
    """Draw what was found of small networks that belong to no zoo: clauses, then controls."""
    part = st.expander(
        "Claims about networks from different starts",
        icon=":material/hub:",
        key="experiments.networks",
        on_change="rerun",
    )
    if not part.open:
        return
    with part:
        for networks in filter(None, map(read_networks, network_names())):
            spec, result = networks.experiment, networks.result
            st.markdown(f"**{plain(spec.claim)}** :gray[{plain(f'{spec.paper}; {spec.part}')}]")
            rows = [
                {
                    "Clause": f"Control: {finding.text}" if finding.control else finding.text,
                    "Here": _said(finding),
                    "Difference": effect(finding) or None,
                }
                for finding in sorted(result.findings, key=lambda finding: finding.control)
            ]
            draw_table(
                pd.DataFrame(rows),
                hide_index=True,
                key=f"experiments.networks.{spec.name}",
                column_config=FOUND,
                placeholder="–",
                alt=f"{len(rows)} clauses and controls with what was found",
            )
            count = (result.images or (0, 0))[0]
            st.caption(
                f"Perceptrons trained on {plain(result.zoo)}, {len(result.points[0].seeds)} pairs, n = {count} test "
                "images; intervals over pairs. The lesson *When do two networks connect?* draws the path; "
                f"`python -m engine lesson measure {spec.name}` measures it again."
            )


def _said(finding: Finding) -> str:
    if finding.control:
        return {"seen": "it does", "opposite seen": "it does not"}.get(finding.outcome, finding.outcome)
    return finding.verdict or finding.outcome


def draw_elsewhere() -> None:
    """Draw what needs other models, with the command that makes it there."""
    part = st.expander(
        "What only other models can show",
        icon=":material/travel_explore:",
        key="experiments.elsewhere",
        on_change="rerun",
    )
    if not part.open:
        return
    rows = [
        {
            "Paper": entry.paper,
            "Part": entry.part,
            "Shows": entry.shows,
            "Needs": entry.needs,
            "Command": " && ".join(entry.commands) or None,
        }
        for entry in elsewhere()
    ]
    with part:
        draw_table(
            pd.DataFrame(rows),
            hide_index=True,
            key="experiments.elsewhere.table",
            column_config=COLUMNS,
            placeholder="–",
            alt=f"{len(rows)} tables and figures with what they need and their command",
        )
        st.caption(
            "`experiment NAME --zoo PATH --foreseen` says first how long it takes and what memory. Sizes follow the "
            "encoder's width, so the same file asks for the papers' ranks there."
        )
