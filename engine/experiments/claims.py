"""All claims at a glance: what was said, what came out, and which control explains it."""

from __future__ import annotations

from .result import ExperimentResult, read_result
from .spec import FOLDER, Experiment, experiment_names, read_experiment


def shipped() -> list[tuple[Experiment, ExperimentResult]]:
    """Return experiments of the app with the results that come along, by paper."""
    found = [
        (read_experiment(name), read_result(FOLDER / f"{name}.json"))
        for name in experiment_names()
        if (FOLDER / f"{name}.json").is_file()
    ]
    return sorted(found, key=lambda pair: (pair[0].paper, pair[0].name))


def claims_table() -> str:
    """Return the table as Markdown."""
    lines = ["| paper | claim | here | because |", "|---|---|---|---|"]
    for spec, result in shipped():
        authors = spec.paper.split(",")[0]
        lines.append(f"| {authors}, {spec.part} | {spec.claim} | {result.verdict} | {_reason(result)} |")
    return "\n".join(lines)


def _reason(result: ExperimentResult) -> str:
    """Return the finding that decided, with its numbers."""
    decided = next((finding for finding in result.findings if finding.text in result.reason), None)
    if decided is None or decided.left is None or decided.right is None:
        return result.reason
    return f"{result.reason} ({decided.left:,.4g} against {decided.right:,.4g})"
