"""The step of a preview: a merge in memory, scored on a sample of each task's images, beside another merge."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from ...analysis.accuracy import mean_interval, predictions, scores, top1, wilson_interval
from ...analysis.film import fit_map
from ...analysis.paired import Difference, paired_difference
from ...features import Batches
from ..rates import add_rate, known_rates
from ..sources import Sources
from ..steps import A, Inputs, StepParams, apart, step
from .models import Models, Side, contents_of, encode_together
from .request import PATIENCE
from .resident import KEEPER, Resident

if TYPE_CHECKING:
    from ..tools import StepTools

CHANGED = 1.2  # factor by which a time differs from the one known before it is written down
BELIEVED = 1.3  # times as long as was foreseen, at most, for what one preview says: it may have been held up


class PreviewParams(StepParams):
    """Parameters of a preview."""

    keys: dict[str, dict[str, dict[str, str]]]  # side → state → task → key of the features that are measured
    heads: str | None
    chance: str  # a sentence on what is drawn at random
    looked_at: str = ""  # a sentence on merges that are made from fewer images than a run's
    uncompared: str  # why there is nothing to compare with, where one was asked for
    protocol: str
    split_seed: int
    seed: int
    sides: dict[str, Side] = apart()  # ``merged`` and, where it is compared, ``against``
    rate: str = apart()  # under which the time is written down
    foreseen: float = apart()  # seconds
    sources: Sources = apart()


@dataclass(frozen=True)
class PreviewInputs(Inputs[A]):
    """Inputs of a preview."""

    heads: A | None = None  # where they are built


@step("preview", label="Previewing", params=PreviewParams, inputs=PreviewInputs, version=3, gpu=True, resident=True)
def preview(inputs: PreviewInputs[Path], params: PreviewParams, output: Path, tools: StepTools) -> None:
    """Measure a merge on a sample, in memory; nothing of the merge is written.

    Writes ``preview.json`` and ``preview.safetensors``: ``task`` and ``index`` of the n images (rows of the test
    splits), and for each side ``SIDE/points`` (n, 2) in one map and ``SIDE/right`` (n,), NaN and 0 where a merge has no
    weights for an image's task.
    """
    resident = KEEPER.take(params.sources, contents_of(params.sides.values(), params.heads))
    samples = Samples(resident, params.sides["merged"], params, tools)
    other = params.sides.get("against")
    compared = None if other is None else samples.states(other, "merged", keep=True)
    began, worked, news = time.perf_counter(), time.process_time(), resident.news
    merged = samples.states(params.sides["merged"], "merged")
    seconds, worked = time.perf_counter() - began, time.process_time() - worked
    document, arrays = samples.report(merged, compared)
    document |= {"seconds": round(seconds, 3), "chance": params.chance, "protocol": params.protocol}
    document |= {"split_seed": params.split_seed, "seed": params.seed, "uncompared": params.uncompared}
    document |= {"looked_at": params.looked_at}
    save_file(arrays, output / "preview.safetensors")
    (output / "preview.json").write_text(json.dumps(document))
    if resident.news == news:  # the next ones will take as long
        _remember(params.rate, min(seconds, worked), params.foreseen, tools)


class Samples:
    """A sample of each task's images, and the features that merges have of them."""

    def __init__(self, resident: Resident, side: Side, params: PreviewParams, tools: StepTools) -> None:
        """Choose the images, read heads, and encode with the pretrained model.

        Args:
            resident: the zoo in memory.
            side: the merge that is previewed.
            params: of the step.
            tools: of the step.
        """
        self._resident, self._tools = resident, tools
        self._sizes = Batches()
        scored = side.encoded["merged"]
        self.tasks = [task for task in resident.zoo.manifest.tasks if task.name in scored]
        both = {name: resident.chosen(name, one.probe) for name, one in scored.items()}
        self._chosen = {name: chosen for name, (chosen, _) in both.items()}
        self._labels = {name: labels for name, (_, labels) in both.items()}
        self._heads = resident.heads([task.name for task in self.tasks])
        self._pretrained = self.states(side, "pretrained", keep=True)

    def states(self, side: Side, state: str, *, keep: bool = False) -> dict[str, np.ndarray]:
        """Return the features (n, dim) of a state by task, of the images that are scored.

        Args:
            side: a merge.
            state: of it.
            keep: in memory, for the next preview.
        """
        wanted = {name: one for name, one in side.encoded[state].items() if name in self._chosen}
        known = {name: self._resident.features(side.keys[state][name]) for name in wanted} if keep else {}
        found = {name: features for name, features in known.items() if features is not None}
        missing = [one for name, one in wanted.items() if name not in found]
        models, sizes = Models(self._resident, side, self._tools), self._sizes
        encoded = encode_together(models, missing, map(self._samples, (one.task for one in missing)), sizes)
        for one, features in zip(missing, encoded, strict=True):
            found[one.task] = features
            if keep:
                self._resident.keep(side.keys[state][one.task], features)
        return {name: found[name] for name in wanted}

    def _samples(self, task: str) -> np.ndarray:
        return self._resident.samples(task, self._rows(task))

    def report(
        self, merged: Mapping[str, np.ndarray], compared: Mapping[str, np.ndarray] | None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Score both sides and place them in one map, fitted to what stands still: pretrained and what is compared.

        Where nothing is compared, it is fitted to pretrained and the merge; the document names both as ``anchors``.

        Returns:
            The document and the arrays that the step writes.
        """
        sides = {"merged": merged} | ({} if compared is None else {"against": compared})
        still = next(reversed(sides))  # what is compared, else the merge itself
        anchors = {"pretrained": self._pretrained, still: sides[still]}
        place, facts = fit_map(np.concatenate([part for state in anchors.values() for part in state.values()]))
        right = {side: self._right(features) for side, features in sides.items()}
        arrays = {
            "task": np.repeat(np.arange(len(self.tasks)), [len(self._labels[t.name]) for t in self.tasks]),
            "index": np.concatenate([self._rows(task.name) for task in self.tasks]),
        }
        arrays = {name: values.astype(np.int32) for name, values in arrays.items()}
        for side, features in sides.items():
            arrays[f"{side}/points"] = np.concatenate([self._points(place, features, t.name) for t in self.tasks])
            arrays[f"{side}/right"] = np.concatenate([self._known(right[side], t.name) for t in self.tasks])
        document = {
            "format": 1,
            "tasks": [self._task(task, right) for task in self.tasks if task.name in merged],
            "average": {domain: self._average(right, domain) for domain in ("in", "out")},
            "map": {"method": "pca", "anchors": list(anchors), **facts},
        }
        return document, arrays

    def _right(self, features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return by task which images are classified correctly."""
        found = {}
        for name, matrix in features.items():
            found[name] = predictions(scores(matrix, self._heads[name])) == self._labels[name]
        return found

    def _rows(self, task: str) -> np.ndarray:
        chosen = self._chosen[task]
        return chosen.test[chosen.evaluate_rows]

    def _points(self, place: Any, features: Mapping[str, np.ndarray], task: str) -> np.ndarray:
        if task not in features:
            return np.full((len(self._labels[task]), 2), np.nan, np.float32)
        return place(features[task]).astype(np.float32)

    def _known(self, right: Mapping[str, np.ndarray], task: str) -> np.ndarray:
        return right.get(task, np.zeros(len(self._labels[task]), bool)).astype(np.uint8)

    def _task(self, task: Any, right: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Any]:
        own = right["merged"][task.name]
        n = len(own)
        found: dict[str, Any] = {"name": task.name, "title": task.label, "domain": task.role, "evaluated": n}
        found |= {"available": self._chosen[task.name].available}
        for side, known in right.items():
            if task.name in known and not task.grades:
                percent = top1(known[task.name], np.ones(n, bool))
                found[side] = [percent, *wilson_interval(percent, n)]
        return found

    def _average(self, right: Mapping[str, Mapping[str, np.ndarray]], domain: str) -> dict[str, Any] | None:
        """Return the means over a domain's tasks with their intervals, and the difference by image."""
        names = [task.name for task in self.tasks if task.role == domain and not task.grades]
        both = {side: {name: known[name][None] for name in names if name in known} for side, known in right.items()}
        found: dict[str, Any] = {}
        for side, known in both.items():
            if known:
                parts = [(100.0 * float(part.mean()), part.size) for part in known.values()]
                low, high = mean_interval(parts)
                found[side] = {"mean": float(np.mean([percent for percent, _ in parts])), "low": low, "high": high}
                found[side]["images"] = sum(n for _, n in parts)
        if "against" in found and set(both["merged"]) & set(both["against"]):
            difference = paired_difference(both["merged"], both["against"])
            found["difference"] = {**_interval(difference), "outcome": difference.outcome()}
        return found or None


def _interval(found: Difference) -> dict[str, Any]:
    """Return a mean with its interval as JSON values."""
    return {"mean": found.mean, "low": found.low, "high": found.high, "images": found.images}


def _remember(name: str, seconds: float, foreseen: float, tools: StepTools) -> None:
    """Write down how long a preview took on this machine, where that is news; other programs may have held it up."""
    known = known_rates(tools.store).preview
    before = known.get(name, foreseen)
    if name not in known or not before / CHANGED <= seconds <= before * CHANGED:
        add_rate(tools.store, "preview", name, round(min(seconds, BELIEVED * max(before, PATIENCE / 4)), 3))
