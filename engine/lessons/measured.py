"""Measured numbers for lessons: results of experiments, and of small networks that belong to no zoo."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field, ValidationError

from ..errors import EngineError, StoreError
from ..experiments import Experiment, ExperimentResult, experiment_names, read_experiment, read_result
from ..experiments.claims import fits, reason_of
from ..experiments.spec import FOLDER as EXPERIMENTS
from ..recipe import Frozen
from .numbers import RUN, places_in
from .spec import FOLDER, Lesson, Step

NETWORKS = FOLDER / "networks"


class Networks(Frozen):
    """Numbers of small networks, as an experiment with its result."""

    experiment: Experiment
    result: ExperimentResult
    path: dict[str, Any] = Field(default_factory=dict)  # between two of them, for the figure of connections
    ends: tuple[str, str] = ("", "")  # titles of these two


def read_networks(name: str) -> Networks | None:
    """Return the numbers of networks that come with the app; None where there are none of this name.

    Raises:
        StoreError: the file is of another form.
    """
    file = NETWORKS / f"{name}.json"
    if not file.is_file():
        return None
    try:
        return Networks.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise StoreError(f"The numbers in {file.name} are of another form: {error.errors()[0]['msg']}.") from error


def network_names() -> list[str]:
    """Return the names of the numbers of networks that come with the app, in alphabetical order."""
    return sorted(path.stem for path in NETWORKS.glob("*.json"))


def networks_table() -> str:
    """Return what was found of networks that belong to no zoo, as a Markdown table."""
    lines = ["| paper | claim | found | because |", "|---|---|---|---|"]
    for networks in filter(None, map(read_networks, network_names())):
        spec, result = networks.experiment, networks.result
        authors, here = spec.paper.split(",")[0], f"{result.verdict} ({result.zoo})"
        lines.append(f"| {authors}, {spec.part} | {spec.claim} | {here} | {reason_of(spec, result)} |")
    return "\n".join(lines)


def source_names() -> list[str]:
    """Return the names of everything whose numbers a lesson may quote."""
    return sorted([*experiment_names(), *network_names()])


def source_of(name: str) -> Experiment:
    """Return points and measures of what a lesson quotes.

    Raises:
        RecipeError: there is no such experiment.
    """
    found = read_networks(name)
    return found.experiment if found else read_experiment(name)


def shipped_result(name: str) -> ExperimentResult | None:
    """Return the result that comes with the app; None where none belongs to the experiment as it is now."""
    networks = read_networks(name)
    if networks is not None:
        return networks.result
    file = EXPERIMENTS / f"{name}.json"
    try:
        result = read_result(file)
        return result if fits(read_experiment(name), result) else None
    except EngineError:
        return None


def shipped_results(names: Iterable[str]) -> dict[str, ExperimentResult]:
    """Return the results that come with the app, by name; what was not measured is left out."""
    return {name: result for name in names if (result := shipped_result(name)) is not None}


def quoted(lesson: Lesson) -> list[str]:
    """Return the names of the experiments whose numbers a lesson quotes, in alphabetical order."""
    shown = {name for step in lesson.steps for name in (step.experiment, step.control and step.control.experiment)}
    return sorted({name for step in lesson.steps for name in sources(step)} - {RUN} | {name for name in shown if name})


def sources(step: Step) -> list[str]:
    """Return whose numbers a step's texts and prediction quote, in alphabetical order: experiments, and ``run``."""
    places = [place for _, text in step.texts() for place in places_in(text)]
    return sorted({place.split(".")[0] for place in (*places, *(step.predict.places if step.predict else ()))})
