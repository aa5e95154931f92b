"""All claims at a glance: what was said, what came out, and which control explains it."""

from __future__ import annotations

from ..manifest import ASSETS
from .result import ExperimentResult, Finding, read_result
from .spec import BUNDLED, FOLDER, Experiment, experiment_names, read_experiment

PENDING = "to be recomputed"


def shipped() -> list[tuple[Experiment, ExperimentResult | None]]:
    """Return experiments of the app with the results that come along, by paper; None: none fits."""
    found = []
    for name in experiment_names():
        spec, file = read_experiment(name), FOLDER / f"{name}.json"
        result = read_result(file) if file.is_file() else None
        found.append((spec, result if result is not None and fits(spec, result) else None))
    return sorted(found, key=lambda pair: (pair[0].section, pair[0].paper, pair[0].name))


def fits(spec: Experiment, result: ExperimentResult) -> bool:
    """Return whether a result was computed with this form of its experiment."""
    return result.form == spec.digest()


def claims_table() -> str:
    """Return the table as Markdown."""
    lines = ["| paper | claim | here | because |", "|---|---|---|---|"]
    for spec, result in shipped():
        authors = spec.paper.split(",")[0]
        here = verdict_of(result) + ("" if spec.zoo == BUNDLED else f" ({spec.zoo})")
        lines.append(f"| {authors}, {spec.part} | {spec.claim} | {here} | {reason_of(spec, result)} |")
    return "\n".join(lines)


def verdict_of(result: ExperimentResult | None) -> str:
    """Return the verdict in words."""
    return PENDING if result is None else result.verdict


def reason_of(spec: Experiment, result: ExperimentResult | None) -> str:
    """Return what decided, with its numbers; without a result the command that computes it."""
    if result is None:
        return f"`python -m engine experiment {spec.name}{zoo_option(spec)}`"
    return "; ".join(clause(finding) for finding in result.findings if not finding.control) or result.reason


def zoo_option(spec: Experiment) -> str:
    """Return what names the zoo of an experiment on the command line, where it is one that has to be made first."""
    return " --zoo DIR" if (ASSETS / "derived" / f"{spec.zoo}.yaml").is_file() else ""


def clause(finding: Finding) -> str:
    """Return a clause in words: what it says, its verdict, the effect with its interval, what explains it."""
    said = finding.text.rstrip(".")
    text = f"{said}: {finding.verdict}" if finding.outcome != "not measured" else f"{said}: not measured"
    if finding.difference is not None:
        text += f" ({effect(finding)})"
    return text + (f"; as well: {' '.join(finding.explained_by)}" if finding.explained_by else "")


def effect(finding: Finding) -> str:
    """Return a difference with its interval, such as ``+2.1, 0.8 to 3.4``; empty where nothing was measured."""
    if finding.difference is None:
        return ""
    text = f"{finding.difference:+,.3g}"
    if finding.low is None or finding.high is None or finding.basis == "count":
        return text.replace("-", "−")
    return f"{text}, {finding.low:,.3g} to {finding.high:,.3g}".replace("-", "−")
