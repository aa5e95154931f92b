"""A small finished run made of numbers, as a folder: report, recipe, samples and projections."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from engine.pipeline.run.projecting import ProjectionRequest
from engine.recipe import CalibratorCall, MethodCall, Recipe
from engine.report import (
    Averages,
    BiasParts,
    CalibratorPart,
    MergedPart,
    Report,
    SaliencePart,
    SampleCounts,
    TaskSummary,
    ZooIdentity,
)

TASKS = {"digits": ("zero", "one", "two"), "signs": ("stop", "go", "<b>left</b>"), "scenes": ("hill", "sea")}
EVALUATED = 12
COLUMNS = ("step", "loss", "l1_adapt", "l1_evaluate", "accuracy_adapt", "accuracy_evaluate")
LAYERS = (
    "visual.conv1.weight",
    "visual.transformer.resblocks.0.attn.in_proj_weight",
    "visual.transformer.resblocks.0.mlp.c_fc.weight",
    "visual.transformer.resblocks.1.ln_1.weight",
    "visual.proj",
)
STATES = {"pretrained": 30.0, "merged": 55.0, "surgery": 75.0, "expert": 95.0}


def made_report(**changes: Any) -> Report:
    """A report of two in-domain tasks and one out-of-domain task; parts can be replaced or emptied."""
    inside = ("digits", "signs")
    fields: dict[str, Any] = {
        "recipe": Recipe(
            zoo="made",
            merge=MethodCall(method="task_arithmetic", params={"scaling": 0.3}),
            calibrators=(CalibratorCall(method="surgery", params={"rank": 4, "steps": 40}),),
        ),
        "identity": "0" * 64,
        "zoo": ZooIdentity(name="made", title="Made", digest="f" * 64),
        "tasks": {
            name: TaskSummary(
                title=name.capitalize(),
                domain="in" if name in inside else "out",
                classes=classes,
                expert=name if name in inside else None,
            )
            for name, classes in TASKS.items()
        },
        "experts": inside,
        "samples": {name: SampleCounts(adapt=8, evaluate=EVALUATED, available=40) for name in TASKS},
        "protocol": "held_out",
        "split_seed": 0,
        "seeds": (0,),
        "accuracy": {
            state: {
                name: value + 2 * number
                for number, name in enumerate(TASKS)
                if name in inside or state in ("pretrained", "merged")
            }
            for state, value in STATES.items()
        },
        "average": {
            state: Averages(within=value + 1, out=value + 4 if state in ("pretrained", "merged") else None)
            for state, value in STATES.items()
        },
        "bias": {
            state: BiasParts(
                l1={"digits": value, "signs": value + 0.1},
                l2={"digits": 9 * value, "signs": 9 * value},
                cosine={"digits": value / 3, "signs": None},
                cka={"digits": 1 - value / 2, "signs": 1 - value / 2},
                l1_by_class={"digits": (value, value + 0.2, None), "signs": (value, value, value)},
            )
            for state, value in (("pretrained", 0.9), ("merged", 0.6), ("surgery", 0.3))
        },
        "salience": SaliencePart(
            layers=LAYERS,
            parameters=(100, 400, 800, 10, 90),
            score={"digits": (0.5, 0.4, 0.3, 0.2, 0.1), "signs": (0.1, 0.5, 0.2, 0.0, 0.3)},
            eta=0.7,
            mask={"digits": (True, False, False, False, False), "signs": (False, True, False, False, False)},
            shared_mask=(True, True, False, False, False),
            kept_layers=2,
            kept_parameters_percent=500 / 14,
            kept_megabytes=500 * 4 / 2**20,
            applied=False,
        ),
        "merged": MergedPart(kind="static"),
        "calibrators": {
            "surgery": CalibratorPart(
                method="surgery",
                on="merged",
                parameters=128,
                curve_columns=COLUMNS,
                curve=((20, 0.5, 0.5, 0.52, None, 60.0), (40, 0.3, 0.28, 0.31, None, 75.0)),
            )
        },
    }
    return Report(**{**fields, **changes})


def write_run(folder: Path, report: Report, *, projections: tuple[str, ...] = ("tsne",)) -> Path:
    """Write what the run leaves behind."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(report.model_dump_json(by_alias=True))
    (folder / "recipe.yaml").write_text(report.recipe.to_yaml())
    table = made_samples(report)
    table.to_parquet(folder / "samples.parquet", index=False)
    for method in projections:
        write_projection(folder / "projections" / method, method, table, report)
    return folder


def made_samples(report: Report) -> pd.DataFrame:
    """One row per state and evaluation image; deterministic."""
    rng = np.random.default_rng(0)
    frames = []
    for state, scores in report.accuracy.items():
        for task in scores:
            classes = len(report.tasks[task].classes)
            label = np.arange(EVALUATED) % classes
            right = np.arange(EVALUATED) < EVALUATED * (scores[task] or 0) / 100
            calibrated = state in report.calibrators
            frames.append(
                pd.DataFrame(
                    {
                        "task": task,
                        "index": 2 * np.arange(EVALUATED),
                        "split": "evaluate",
                        "state": state,
                        "label": label,
                        "prediction": np.where(right, label, (label + 1) % classes),
                        "probability": rng.uniform(0.4, 1, EVALUATED),
                        "margin": np.where(right, 0.1, -0.1),
                        "shift": 0.0
                        if state == "expert"
                        else rng.uniform(1, 5, EVALUATED)
                        if task != "scenes"
                        else np.nan,
                        "sigma": rng.uniform(0.1, 0.3, EVALUATED) if calibrated else np.nan,
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


def write_projection(folder: Path, method: str, samples: pd.DataFrame, report: Report) -> None:
    """Write a projection of the in-domain tasks, every state a shifted copy."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    tasks = [name for name in report.experts if name in report.tasks]
    states = [state for state in report.states() if state != "multitask"]
    frames = []
    for number, state in enumerate(states):
        for task in tasks:
            index = samples.loc[(samples["task"] == task) & (samples["state"] == state), "index"]
            points = rng.normal(size=(len(index), 2)) + number
            frames.append(
                pd.DataFrame(
                    {"state": state, "task": task, "index": index.to_numpy(), "x": points[:, 0], "y": points[:, 1]}
                )
            )
    pd.concat(frames).to_parquet(folder / "projection.parquet", index=False)
    params = ProjectionRequest(method=method).params()
    document = {
        "params": params,
        "states": states,
        "images": dict.fromkeys(tasks, EVALUATED),
        "available": dict.fromkeys(tasks, EVALUATED),
        "metrics": {
            "method": method,
            "points": 96,
            "trustworthiness": 0.93,
            "neighbour_overlap": 0.41,
            "neighbourhood": 15,
            "anchors": 96,
        },
    }
    (folder / "projection.json").write_text(json.dumps(document))
