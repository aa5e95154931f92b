"""All claims at a glance: what was said, what came out, and which control explains it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..manifest import ASSETS
from .result import ExperimentResult, Finding, read_result
from .spec import BUNDLED, FOLDER, Experiment, experiment_names, read_experiment

PENDING = "to be recomputed"
PRACTICE = "Checks of practice"
NOBODY = "How results are come by, rather than what a paper claims."
SECTIONS = {"claims": "paper", "practice": "practice"}  # section → title of its table's first column
EVIDENCE = (
    "Small networks on drawn images and sentences of grammars can show a mechanism or its absence; they do not refute "
    "results on photographs and people's texts. Where a point was tuned, validation images or texts chose unless the "
    "page says otherwise, of the values that it tells; other settings are fixed, mostly as published; two checks of "
    "practice, `tuned-merges` and `tuned-calibrators`, let methods choose their own."
)
SECOND = "-experts2"  # how the zoo with the second set of experts is named after the first


def shipped() -> list[tuple[Experiment, ExperimentResult | None]]:
    """Return experiments of the app with the results that come along, by paper; None: none fits."""
    found = []
    for name in experiment_names():
        spec = read_experiment(name)
        file = shipped_path(spec)
        result = read_result(file) if file.is_file() else None
        found.append((spec, result if result is not None and fits(spec, result) else None))
    return sorted(found, key=lambda pair: (pair[0].section, pair[0].paper, pair[0].name))


def shipped_path(spec: Experiment, zoo: str = "") -> Path | None:
    """Return where a zoo's result is shipped; None for a zoo that nothing is shipped of.

    A comparison that a paper rests on (``headline``) is also shipped as measured on a second set of experts.

    Args:
        spec: the experiment.
        zoo: the zoo's name; empty: the one that the experiment is meant for.
    """
    if zoo in ("", spec.zoo):
        return FOLDER / f"{spec.name}.json"
    return FOLDER / f"{spec.name}{SECOND}.json" if spec.headline and zoo == spec.zoo + SECOND else None


def second_set(spec: Experiment) -> ExperimentResult | None:
    """Return a headline's shipped result on the second set of experts; None where there is none that fits."""
    file = shipped_path(spec, spec.zoo + SECOND)
    result = read_result(file) if file is not None and file.is_file() else None
    return result if result is not None and fits(spec, result) else None


def fits(spec: Experiment, result: ExperimentResult) -> bool:
    """Return whether a result was computed with this form of its experiment."""
    return result.form == spec.digest()


def claims_table() -> str:
    """Return the tables of claims and of checks of practice as Markdown, each row with a link to its clauses."""
    tables = []
    for section, title in SECTIONS.items():
        lines = [f"| {title} | claim | here | clauses seen |", "|---|---|---|---|"]
        for spec, result in shipped():
            if spec.section == section:
                lines.append(f"| {_source(spec)} | {spec.claim} | {_here(spec, result)} | {counted(spec, result)} |")
        tables.append("\n".join(lines))
    return f"\n\n### {PRACTICE}\n\n{NOBODY}\n\n".join(tables)


def clause_lists() -> str:
    """Return the clauses of every experiment as Markdown, one to a line, under its name."""
    parts = []
    for spec, result in shipped():
        if result is not None:
            lines = [f"- {said}" for said in _clauses(spec, result)] or [result.reason]
            parts.append(
                f"### {spec.name}\n\n{spec.title} ({_source(spec)}): {_here(spec, result)}.\n\n" + "\n".join(lines)
            )
    return "\n\n".join(parts)


def counted(spec: Experiment, result: ExperimentResult | None) -> str:
    """Return how many clauses were seen, as a link to them; without a result the command that computes it."""
    if result is None:
        return reason_of(spec, result)
    asked = {place for place, check in enumerate(spec.checks) if check.asked}
    text = f"[{_seen(result, lambda place: place not in asked)}](#{spec.name})"
    if asked:
        text += f"; asked here {_seen(result, asked.__contains__)}"
    if (other := second_set(spec)) is not None:
        text += f"; with other experts {_seen(other, lambda place: place not in asked)}"
    return text


def _seen(result: ExperimentResult, counts: Callable[[int], bool]) -> str:
    outcomes = [one.outcome for place, one in enumerate(result.findings) if not one.control and counts(place)]
    return f"{outcomes.count('seen')} of {len(outcomes)}"


def _source(spec: Experiment) -> str:
    return spec.part if spec.section == "practice" else f"{spec.paper.split(',')[0]}, {spec.part}"


def _here(spec: Experiment, result: ExperimentResult | None) -> str:
    sets = sets_of(result) if result is not None else ""
    return verdict_of(result) + ("" if spec.zoo == BUNDLED else f" ({spec.zoo}{sets})")


def verdict_of(result: ExperimentResult | None) -> str:
    """Return the verdict in words."""
    return PENDING if result is None else result.verdict


def reason_of(spec: Experiment, result: ExperimentResult | None) -> str:
    """Return what decided, with its numbers; without a result the command that computes it."""
    if result is None:
        return f"`python -m engine experiment {spec.name}{zoo_option(spec)}`"
    return "; ".join(_clauses(spec, result)) or result.reason


def _clauses(spec: Experiment, result: ExperimentResult) -> list[str]:
    other = second_set(spec)
    again = other.findings if other is not None else (None,) * len(result.findings)
    return [clause(one, two) for one, two in zip(result.findings, again, strict=True) if not one.control]


def sets_of(result: ExperimentResult) -> str:
    """Return how many sets of experts a result pools, in words; empty of one."""
    return f", {result.sets} sets of experts by other training seeds" if result.sets > 1 else ""


def zoo_option(spec: Experiment) -> str:
    """Return what names the zoo of an experiment on the command line, where it is one that has to be made first."""
    return " --zoo DIR" if (ASSETS / "derived" / f"{spec.zoo}.yaml").is_file() else ""


def clause(finding: Finding, again: Finding | None = None) -> str:
    """Return a clause in words: what it says, its verdict, the effect with its interval, what explains it.

    Args:
        finding: the clause.
        again: the same clause on a second set of experts.
    """
    said = finding.text.rstrip(".")
    text = f"{said}: {finding.verdict}" if finding.outcome != "not measured" else f"{said}: not measured"
    if finding.difference is not None:
        text += f" ({effect(finding)})"
    if again is not None and again.difference is not None:
        text += f" and with other experts {again.verdict} ({effect(again)})"
    return text + (f"; as well: {' '.join(finding.explained_by)}" if finding.explained_by else "")


def effect(finding: Finding) -> str:
    """Return a difference with its interval, such as ``+2.1, 0.8 to 3.4``; empty where nothing was measured."""
    if finding.difference is None:
        return ""
    text = f"{finding.difference:+,.3g}"
    if finding.low is None or finding.high is None or finding.basis == "count":
        return text.replace("-", "−")
    return f"{text}, {finding.low:,.3g} to {finding.high:,.3g}".replace("-", "−")
