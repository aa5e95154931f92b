"""The clauses of a claim with their outcomes, on one zoo and on several side by side."""

from collections.abc import Sequence

import streamlit as st

from engine.experiments import Experiment, ExperimentResult, Finding, Point
from engine.experiments.claims import effect
from engine.recipe import Recipe
from engine.sweeps.places import place_title
from engine.zoo.modalities import MODALITIES
from pages.shared.chrome import draw_facts, plain
from pages.shared.tables import draw_table

NONE = "–"
BASES = {
    "groups": "; over groups of experts",
    "seeds": "; over seeds alone",
    "points": "; over these points",
    "count": "",
}
OUTCOMES = {
    "seen": ":material/check: seen",
    "opposite seen": ":material/swap_horiz: opposite seen",
}


def findings(spec: Experiment, result: ExperimentResult) -> None:
    """Draw what the claim comes down to, clause by clause, what is asked here besides, and the controls."""
    parts: dict[str, list[str]] = {"What the claim comes down to": [], "Asked here": [], "Controls": []}
    for check, finding in zip(spec.checks, result.findings, strict=True):
        heading = "Controls" if check.control else "Asked here" if check.asked else "What the claim comes down to"
        line = f"- {plain(finding.text)} {_outcome(finding)}"
        if finding.explained_by:
            line += f" As well: {plain(' '.join(finding.explained_by))}"
        if check.paper:
            line += f" :gray[The paper: {plain(check.paper)}.]"
        parts[heading].append(line)
    for heading, lines in parts.items():
        if lines:
            text = "\n".join(lines)
            st.markdown(f"**{heading}**\n\n{text}")


def _outcome(finding: Finding) -> str:
    said = OUTCOMES.get(finding.outcome, finding.outcome)
    if finding.control and finding.basis:
        said = {"seen": "it does", "opposite seen": "it does not"}.get(finding.outcome, said)
    elif finding.verdict and finding.outcome != "not measured":
        said = finding.verdict
    text = f"**{said}**"
    if finding.difference is None:
        return text
    numbers = f"difference {effect(finding)}"
    if finding.left is not None and finding.right is not None:
        numbers = f"{finding.left:,.4g} against {finding.right:,.4g}, {numbers}"
    return f"{text} :gray[({numbers}{BASES.get(finding.basis, '')})]"


def chosen_settings(spec: Experiment, result: ExperimentResult) -> None:
    """Draw the settings that validation samples chose at each point, beside what was tried."""
    points = {point.name: point for point in spec.points}
    rows = [
        {
            "Point": point.title,
            "Setting": _setting(spec, points[point.name], tuned.place),
            "Chosen": tuned.said,
            "Tried": ", ".join(map(str, tuned.values)),
            "By": f"{points[point.name].chosen_by}, on {point.split} {MODALITIES[result.kind].many}",
        }
        for point in result.points
        for tuned in point.tuned
    ]
    if not rows:
        return
    st.subheader("What was chosen", anchor=False)
    said = "All combinations of a point's settings are tried, and the same choice holds for all its seeds"
    own = any(point.peeks for point in spec.points)
    said += ", except where each run chose by itself: that is told seed by seed." if own else "."
    if len(same := {row["By"] for row in rows}) == 1:
        said = f"By {same.pop()}. {said}"
        rows = [{name: cell for name, cell in row.items() if name != "By"} for row in rows]
    draw_table(rows, hide_index=True, key=f"experiments.chosen.{spec.name}")
    st.caption(plain(said))


def _setting(spec: Experiment, point: Point, place: str) -> str:
    """Return the title of a setting of a point's recipe."""
    parts = {**spec.base, **point.set}
    recipe = Recipe.model_validate(
        {name: parts[name] for name in ("merge", "transforms", "calibrators") if name in parts}
    )
    return place_title(recipe, place)


def beside(spec: Experiment, every: Sequence[ExperimentResult]) -> None:
    """Draw the clauses' verdicts and effects on every zoo that they were computed on, side by side."""
    if len(every) < 2:
        return
    st.markdown("**Zoos side by side**")
    clauses = [place for place, finding in enumerate(every[0].findings) if not finding.control]
    rows = [
        {"Clause": every[0].findings[place].text}
        | {f"{measured_on(result)} ({result.zoo_digest[:6]})": _short(result, place) for result in every}
        | {"Spread": _spread(every, place)}
        for place in clauses
    ]
    draw_facts(rows)
    sets = "Headlines are judged on two sets of experts of one base, by different seeds. " if spec.headline else ""
    st.caption(f"{sets}Spread: the greatest difference less the smallest.")


def measured_on(result: ExperimentResult) -> str:
    """Return the zoo of a result, and whether it is one of the quick form."""
    return f"{result.zoo}, quick form" if result.quick else result.zoo


def _spread(every: Sequence[ExperimentResult], place: int) -> str:
    """Return how far a clause's differences lie apart from zoo to zoo."""
    there = [result.findings[place].difference for result in every if place < len(result.findings)]
    known = [difference for difference in there if difference is not None]
    return f"{max(known) - min(known):,.3g}" if len(known) > 1 else NONE


def _short(result: ExperimentResult, place: int) -> str:
    if place >= len(result.findings):
        return NONE
    finding = result.findings[place]
    return f"{finding.verdict}: {effect(finding)}" if finding.difference is not None else finding.outcome
