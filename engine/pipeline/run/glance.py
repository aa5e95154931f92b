"""The step that tells a run's first numbers while the rest of it is still computed: accuracies before any repair."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...analysis.accuracy import predictions, scores, top1, wilson_interval
from ...recipe import Probe
from ...store import FIRST_NUMBERS
from ...zoo.images.splits import select
from ..sources import Sources
from ..steps import INLINED, A, Inputs, StepParams, apart, step
from .encoding import read_features

if TYPE_CHECKING:
    from ..tools import StepTools

GLANCE = "glance.json"
STATES = ("merged", "expert", "pretrained")


class GlanceParams(StepParams):
    """Parameters of the glance step."""

    tasks: tuple[str, ...]
    probe: Probe
    heads: str | None  # digest
    data: dict[str, str]  # digests of images by task
    seed: int
    sources: Sources = apart()


@dataclass(frozen=True)
class GlanceInputs(Inputs[A]):
    """Inputs of the glance step."""

    features: Mapping[str, Mapping[str, A]] = field(default_factory=dict, metadata=INLINED)  # state → task
    heads: A | None = None  # where they are built


@step(
    "glance",
    label="First accuracies",
    params=GlanceParams,
    inputs=GlanceInputs,
    cost=0.2,
    threads=1,
    retold=(FIRST_NUMBERS, GLANCE),
)
def glance(inputs: GlanceInputs[Path], params: GlanceParams, output: Path, tools: StepTools) -> None:
    """Score the merged model, the experts and the pretrained model, and tell it at once.

    Writes ``glance.json``: by task its evaluated images and, for each state, accuracy and 95 % Wilson interval in
    percent, and the states' means over in-domain tasks. The report measures the same anew, with everything else.
    """
    zoo = params.sources.open()
    heads, _ = zoo.heads(list(params.tasks))
    tasks: list[dict[str, Any]] = []
    for name in params.tasks:
        task, chosen = zoo.manifest.task_table[name], select(zoo.data[name], params.probe)
        labels = zoo.data[name].labels("test")[chosen.test[chosen.evaluate_rows]]
        found: dict[str, Any] = {"name": name, "title": task.label, "domain": task.role, "evaluated": len(labels)}
        for state in STATES:
            if name in inputs.features.get(state, ()) and not task.grades:
                features = read_features(inputs.features[state][name])["test"].numpy()[chosen.evaluate_rows]
                percent = top1(predictions(scores(features, heads[name])), labels)
                found[state] = [percent, *wilson_interval(percent, len(labels))]
        tasks.append(found)
    scored = [task for task in tasks if task["domain"] == "in" and "merged" in task]
    means = {
        state: float(np.mean([task[state][0] for task in scored]))
        for state in STATES
        if scored and all(state in task for task in scored)
    }
    document = {
        "tasks": tasks,
        "means": means,
        "protocol": params.probe.protocol,
        "split_seed": params.probe.split_seed,
        "seed": params.seed,
    }
    (output / GLANCE).write_text(json.dumps(document))
    tools.metrics({FIRST_NUMBERS: document})
