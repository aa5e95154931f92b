"""Measure a zoo against what it must allow for claims of calibration and merging to be judged on it.

    python benchmarks/zoo.py ZOO [ZOO …] --split test --seeds 5 --record record.yaml

Several zoos are sets of experts of one recipe: every target takes the mean over them and over the training seeds of the
calibrators. ``--split val`` measures on validation samples instead, for whoever changes the recipe. Merges and
calibrators take the catalog's defaults, sizes follow the feature width d: Surgery rank d/8 and d/32, ProbSurgery width
d/2. Calibrators are fitted on adaptation samples, without labels. No target favours a method over its
controls.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import yaml

from benchmarks.merging import PlainContext
from engine.analysis.accuracy import logits, predictions, top1
from engine.analysis.outliers import auroc, prototype_distance, prototypes
from engine.calibration.prob_surgery import ProbSurgery
from engine.calibration.surgery import Surgery
from engine.catalog.calibrators import ProbSurgeryParams, SurgeryParams
from engine.merging.apply import merge
from engine.recipe import MethodCall
from engine.types import Weights
from engine.weights import LazyTaskVectors, Memory
from engine.zoo.encoders.backbone import architecture, load_encoder, to_tensor
from engine.zoo.folder import Zoo

MERGES = {
    "weight_average": MethodCall(method="weight_average"),
    "task_arithmetic": MethodCall(method="task_arithmetic", params={"scaling": 0.3}),
    "tsv_m": MethodCall(method="tsv_m"),
}
BATCH = 250
LAMBDAS = (0.3, 0.5, 0.8)
THIN = "surgery d/32"
Features = dict[str, torch.Tensor]


class Bench:
    """One zoo's features, computed when they are asked for."""

    def __init__(self, folder: Path, split: str) -> None:
        self.zoo, self.split = Zoo.open(str(folder)), split
        self.recipe = json.loads((folder / "build.json").read_text(encoding="utf-8"))
        tasks = {task.name: task for task in self.zoo.manifest.tasks}
        self.inside = [name for name, task in tasks.items() if task.domain == "in"]
        self.shifted = [name for name, task in tasks.items() if task.shifted_from]
        self.outside = [name for name in tasks if name not in (*self.inside, *self.shifted)]
        self.heads, _ = self.zoo.heads(list(tasks))
        self.labels = {name: self.zoo.data[name].labels(split) for name in tasks}
        self.base = self._weights("base")
        self.experts = {expert.task: self._weights(expert.name) for expert in self.zoo.manifest.experts}

    def _weights(self, model: str) -> Memory:
        found = self.zoo.weights(model)
        return Memory({name: found.tensor(name).float() for name in found.names})

    @cached_property
    def samples(self) -> dict[tuple[str, str], torch.Tensor]:
        """Return prepared samples by task and part: those that are scored, and those to adapt on."""
        preprocess, found = self.zoo.preprocess(), {}
        for task in self.labels:
            data = self.zoo.data[task]
            for part in (self.split, "adapt"):
                if data.has(part):
                    rows = np.arange(data.lengths[part])
                    found[task, part] = to_tensor(data.samples(part, rows)[: len(rows)], preprocess)
        return found

    @torch.inference_mode()
    def encode(self, weights: Weights, keys: list[tuple[str, str]]) -> dict[tuple[str, str], torch.Tensor]:
        """Return features (n, d) of some samples."""
        encoder = load_encoder(architecture(self.zoo.folder, self.zoo.manifest), weights).eval()
        return {key: torch.cat([encoder(part) for part in self.samples[key].split(BATCH)]) for key in keys}

    def score(self, task: str, features: torch.Tensor) -> float:
        """Return the percent of a task's scored images that are right."""
        head = self.heads[task]
        return top1(predictions(logits(features.numpy(), head.weight.numpy(), head.scale)), self.labels[task])

    def scores(self, found: Mapping[tuple[str, str], torch.Tensor]) -> dict[str, float]:
        """Return accuracies by task."""
        return {task: self.score(task, part) for (task, which), part in found.items() if which == self.split}

    def merged(self, call: MethodCall) -> Weights:
        """Return a merge of all experts."""
        vectors = LazyTaskVectors(self.base, self.experts)
        return merge(self.base, vectors, [], call, PlainContext(tuple(self.experts))).weights

    def mixed(self, signs: Mapping[str, float], scaling: float) -> Memory:
        """Return the base plus ``scaling`` times a signed sum of task vectors."""
        return Memory(
            {
                name: self.base.tensor(name)
                + scaling * sum(s * (self.experts[t].tensor(name) - self.base.tensor(name)) for t, s in signs.items())
                for name in self.base.names
            }
        )

    def outliers(self, found: Mapping[tuple[str, str], torch.Tensor]) -> dict[str, Any]:
        """Return AUROCs in percent: every out-of-domain image against every task, and of designed near pairs."""
        pooled, near = [], {}
        parts = {key: value.numpy() for key, value in found.items()}
        for task in self.inside:
            known, head = parts[task, "adapt"], self.heads[task]
            said = predictions(logits(known, head.weight.numpy(), head.scale))
            centres = prototypes(known, said)
            inside = prototype_distance(parts[task, self.split], centres)
            outside = {other: prototype_distance(parts[other, self.split], centres) for other in self.outside}
            pooled.append(100 * auroc(inside, np.concatenate(list(outside.values()))))
            for other, distances in outside.items():
                if self.recipe.get("near", {}).get(other) == task:
                    near[f"{other} against {task}"] = round(100 * auroc(inside, distances), 2)
        return {"pooled": round(float(np.mean(pooled)), 2), "near": near}

    def analogy(self) -> dict[str, Any]:
        """Return accuracies on the fourth task of the analogy, of C + B − A and of its parts."""
        a, b, c, d = self.recipe["analogy"]
        signs = {"C + B - A": {c: 1.0, b: 1.0, a: -1.0}, "C": {c: 1.0}, "B": {b: 1.0}, "B - A": {b: 1.0, a: -1.0}}
        key = (d, self.split)
        found: dict[str, Any] = {"task": d, "pretrained": round(self.score(d, self.encode(self.base, [key])[key]), 2)}
        for name, chosen in signs.items():
            models = {scaling: self.mixed(chosen, scaling) for scaling in LAMBDAS}
            found[name] = {
                str(s): round(self.score(d, self.encode(model, [key])[key]), 2) for s, model in models.items()
            }
        return found

    def measure(self, seeds: int) -> dict[str, Any]:
        """Return everything that is measured of one zoo."""
        own = {t: self.encode(w, [(t, self.split), (t, "adapt")]) for t, w in self.experts.items()}
        states = {"pretrained": self.encode(self.base, list(self.samples))}
        states |= {name: self.encode(self.merged(call), list(self.samples)) for name, call in MERGES.items()}
        by_task = {"experts": {task: self.score(task, found[task, self.split]) for task, found in own.items()}}
        by_task |= {name: self.scores(found) for name, found in states.items()}
        target = {task: found[task, "adapt"] for task, found in own.items()}
        dim = next(iter(target.values())).shape[1]
        sizes = {
            "surgery": (Surgery, SurgeryParams(rank=dim // 8)),
            THIN: (Surgery, SurgeryParams(rank=max(1, dim // 32))),
            "prob_surgery": (ProbSurgery, ProbSurgeryParams(hidden=dim // 2)),
        }
        for (name, (kind, params)), on in (
            (pair, on) for pair in sizes.items() for on in ("task_arithmetic", "pretrained")
        ):
            runs = []
            for seed in range(seeds):
                calibrator = kind()
                calibrator.fit({t: states[on][t, "adapt"] for t in self.inside}, target, params, seed)
                runs.append({t: self.score(t, calibrator.correct(states[on][t, self.split], t)) for t in self.inside})
            by_task[f"{name} on {on}"] = {t: float(np.mean([run[t] for run in runs])) for t in self.inside}
        groups = {"in": self.inside, "out": self.outside, "shifted": self.shifted}
        average = {
            state: {
                g: round(float(np.mean([found[t] for t in names])), 2)
                for g, names in groups.items()
                if set(names) & set(found)
            }
            for state, found in by_task.items()
        }
        return {
            "seeds": self.recipe["seeds"],
            "average": average,
            "by_task": {state: {t: round(v, 2) for t, v in found.items()} for state, found in by_task.items()},
            "outliers": {name: self.outliers(states[name]) for name in ("pretrained", "task_arithmetic")},
            "analogy": self.analogy() if self.recipe.get("analogy") else None,
        }


def targets(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every target: its words, its bounds, what was measured (mean over the zoos), and whether it is met."""

    def mean(state: str, group: str = "in") -> float:
        return float(np.mean([zoo["average"][state][group] for zoo in found]))

    base, arithmetic, experts = mean("pretrained"), mean("task_arithmetic"), mean("experts")
    lowest = min(np.mean([zoo["by_task"]["experts"][task] for zoo in found]) for task in found[0]["by_task"]["experts"])
    average, prob = mean("weight_average"), mean("prob_surgery on task_arithmetic")
    near = [value for zoo in found for value in zoo["outliers"]["task_arithmetic"]["near"].values()]
    pooled = np.mean([zoo["outliers"]["task_arithmetic"]["pooled"] for zoo in found])
    out = mean("pretrained", "out") - mean("task_arithmetic", "out")
    rows = [
        (
            "Surgery: on Task Arithmetic above on the pretrained",
            mean("surgery on task_arithmetic") - mean("surgery on pretrained"),
            5,
            None,
        ),
        *(
            [
                (
                    "Surgery of rank d/32: on Task Arithmetic above on the pretrained",
                    mean(f"{THIN} on task_arithmetic") - mean(f"{THIN} on pretrained"),
                    5,
                    None,
                )
            ]
            if f"{THIN} on pretrained" in found[0]["average"]  # records of before leave it out
            else []
        ),
        ("ProbSurgery: on Task Arithmetic above on the pretrained", prob - mean("prob_surgery on pretrained"), 5, None),
        ("experts above ProbSurgery", experts - prob, 2, None),
        ("experts on average", experts, 93, None),
        ("the lowest expert", lowest, 80, None),
        ("pretrained", base, 35, 60),
        ("Weight Averaging above pretrained", average - base, 12, None),
        ("Weight Averaging below the experts", experts - average, 12, None),
        ("Task Arithmetic above pretrained", arithmetic - base, 12, None),
        ("Task Arithmetic below the experts", experts - arithmetic, 12, None),
        ("TSV-M above Weight Averaging and Task Arithmetic", mean("tsv_m") - max(average, arithmetic), 0, None),
        ("out of domain, Task Arithmetic below pretrained", out, 8, None),
        *([("AUROC of near outliers, Task Arithmetic", float(np.mean(near)), 80, 95)] if near else []),
        ("AUROC of all outliers, Task Arithmetic", pooled, 80, 95),
    ]
    return [
        {
            "target": text,
            "measured": round(float(value), 2),
            "least": least,
            "most": most,
            "met": bool(value >= least and (most is None or value <= most)),
        }
        for text, value, least, most in rows
    ]


def main() -> None:
    """Print the averages and the targets, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("zoos", nargs="+", type=Path)
    parser.add_argument("--split", choices=("test", "val"), default="test")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--record", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    benches = [Bench(folder, asked.split) for folder in asked.zoos]
    found = [bench.measure(asked.seeds) for bench in benches]
    sizes = {task: len(labels) for task, labels in benches[0].labels.items()}
    for zoo in found:
        print(f"\n{zoo['seeds']}\n\n| model | in | out | shifted |\n|---|---:|---:|---:|")
        for state, average in zoo["average"].items():
            print(
                f"| {state} | "
                + " | ".join(f"{average[g]:.1f}" if g in average else "" for g in ("in", "out", "shifted"))
                + " |"
            )
        print(f"\noutliers: {zoo['outliers']}\nanalogy: {zoo['analogy']}\nexperts: {zoo['by_task']['experts']}")
    rows = targets(found)
    print("\n| target | bounds | measured | met |\n|---|---|---:|---|")
    for row in rows:
        bounds = f"≥ {row['least']}" + (f", ≤ {row['most']}" if row["most"] is not None else "")
        print(f"| {row['target']} | {bounds} | {row['measured']:.1f} | {'yes' if row['met'] else 'no'} |")
    if asked.record:
        record = {"split": asked.split, "training_seeds": list(range(asked.seeds)), "targets": rows}
        if asked.record.is_file() and (beside := yaml.safe_load(asked.record.read_text("utf-8")).get("beside")):
            record["beside"] = beside
        record |= {"n": sizes, "zoos": found}
        asked.record.write_text(yaml.safe_dump(record, sort_keys=False, width=110), encoding="utf-8")


if __name__ == "__main__":
    main()
