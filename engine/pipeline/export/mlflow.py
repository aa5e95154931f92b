"""A run in MLflow's file store, which other trackers import: parameters, metrics, tags and files.

Facts: the layout of MLflow's file store (``mlruns/EXPERIMENT/RUN`` with ``meta.yaml``, ``params``, ``metrics``,
``tags`` and ``artifacts``; one line ``milliseconds value step`` a metric), as MLflow 3.17.2 reads it where
``MLFLOW_ALLOW_FILE_STORE`` is ``true``, and moves it into a database with ``mlflow migrate-filestore``.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ...errors import EngineError
from ...report import Report, read_report
from ...store.outputs import new_file, new_folder

ACTIVE, FINISHED, LOCAL = "active", 3, 4  # MLflow's codes: lifecycle, status, kind of source
EXPERIMENT = re.compile(r"\d{18}")
NAME = re.compile(r"[^A-Za-z0-9_.\- /]")
FILES = ("report.json", "recipe.yaml", "samples.parquet", "merged.safetensors", "receipt.json")
LONGEST = 6000  # characters of a parameter
PARTS = ("l1", "l2", "cosine", "cka")


def write_mlflow(run: Path, store: Path, *, created: float, seconds: float, name: str) -> str:
    """Add a run to a file store, in the experiment of its zoo; made where there is none.

    Every accuracy and bias is a metric. What it was measured on stands in tags and parameters: protocol, split seed,
    training seeds, and ``n/TASK``, the number of evaluated images.

    Args:
        run: the folder of a finished run.
        store: the folder ``mlruns``.
        created: when the run was asked for, in seconds since 1970.
        seconds: how long it took.
        name: of the run, for people.

    Returns:
        MLflow's id of the run.

    Raises:
        EngineError: the store has this run already, or the folder is no file store.
    """
    report = read_report(run)
    # An experiment without meta.yaml is what is left where writing its first run was cut off.
    others = [place for place in store.iterdir() if not EXPERIMENT.fullmatch(place.name)] if store.exists() else []
    if others and not any(store.glob("*/meta.yaml")):
        raise EngineError(f"{store} is not empty and no file store of MLflow. Give a new folder, such as mlruns.")
    experiment = _number(f"{report.zoo.name} {report.zoo.digest}")
    identity = hashlib.sha256(report.identity.encode()).hexdigest()[:32]
    place = store / experiment / identity
    if place.exists():
        raise EngineError(f"{store} has this run already, as {identity}.")
    start, end = int(created * 1000), int((created + seconds) * 1000)
    with new_folder(place) as making:
        for folder in ("params", "metrics", "tags", "artifacts"):
            (making / folder).mkdir()
        for key, value in _params(report):
            _write(making / "params", key, str(value)[:LONGEST])
        for key, value in _metrics(report):
            _write(making / "metrics", key, f"{end} {value!r} 0\n")
        for key, value in _tags(report, name).items():
            _write(making / "tags", key, value)
        for file in FILES:
            if (run / file).is_file():
                shutil.copyfile(run / file, making / "artifacts" / file)
        _write_meta(making / "meta.yaml", _run(place, experiment, identity, name, start, end))
        about = store / experiment / "meta.yaml"
        if not about.is_file():
            with new_file(about) as file:
                _write_meta(file, _experiment(report, store, experiment, start))
    return identity


def _params(report: Report) -> Iterator[tuple[str, Any]]:
    recipe = report.recipe
    yield "merge/method", recipe.merge.method
    for key, value in recipe.merge.params.items():
        yield f"merge/{key}", value
    for number, call in enumerate(recipe.transforms):
        yield f"transform/{number}/method", call.method
        for key, value in call.params.items():
            yield f"transform/{number}/{key}", value
    for calibrator in recipe.calibrators:
        yield f"calibrator/{calibrator.name}/method", f"{calibrator.method} on {calibrator.on}"
        for key, value in calibrator.params.items():
            yield f"calibrator/{calibrator.name}/{key}", value
    yield "experts", ", ".join(report.experts)
    yield "samples_per_task", recipe.probe.samples_per_task
    for task, count in report.samples.items():
        yield f"n/{task}", count.evaluate
        yield f"n_adapt/{task}", count.adapt


def _metrics(report: Report) -> Iterator[tuple[str, float]]:
    for state, tasks in report.accuracy.items():
        yield from ((f"accuracy/{state}/{task}", value) for task, value in tasks.items() if value is not None)
    for state, tasks in report.accuracy_sd.items():
        yield from ((f"accuracy_sd/{state}/{task}", value) for task, value in tasks.items() if value is not None)
    for state, average in report.average.items():
        for part in ("within", "out", "h_score"):
            if (value := getattr(average, part, None)) is not None:
                yield f"average/{state}/{part}", value
    for state, bias in report.bias.items():
        for part in PARTS:
            yield from ((f"{part}/{state}/{task}", v) for task, v in getattr(bias, part).items() if v is not None)
    yield from ((f"seconds/{step}", value) for step, value in report.timing_s.items())


def _tags(report: Report, name: str) -> dict[str, str]:
    return {
        "mlflow.runName": name,
        "mlflow.source.name": "mergelens",
        "mlflow.source.type": "LOCAL",
        "mlflow.user": "mergelens",
        "zoo": report.zoo.name,
        "zoo_digest": report.zoo.digest,
        "identity": report.identity,
        "split": "evaluate",
        "protocol": report.protocol,
        "split_seed": str(report.split_seed),
        "seeds": ", ".join(map(str, report.seeds)),
        "unit": "accuracy in percent of the evaluated images, mean over the seeds",
        **{f"environment.{key}": value for key, value in report.environment.items()},
    }


def _experiment(report: Report, store: Path, experiment: str, start: int) -> dict[str, Any]:
    return {
        "artifact_location": (store.absolute() / experiment).as_uri(),
        "creation_time": start,
        "experiment_id": experiment,
        "last_update_time": start,
        "lifecycle_stage": ACTIVE,
        "name": f"{report.zoo.name} {report.zoo.digest[:8]}",
    }


def _run(place: Path, experiment: str, identity: str, name: str, start: int, end: int) -> dict[str, Any]:
    return {
        "artifact_uri": (place.absolute() / "artifacts").as_uri(),
        "end_time": end,
        "entry_point_name": "",
        "experiment_id": experiment,
        "lifecycle_stage": ACTIVE,
        "run_id": identity,
        "run_name": name,
        "run_uuid": identity,
        "source_name": "mergelens",
        "source_type": LOCAL,
        "source_version": "",
        "start_time": start,
        "status": FINISHED,
        "tags": [],
        "user_id": "mergelens",
    }


def _number(text: str) -> str:
    """Return a number of 18 digits for a text; MLflow's experiments have numbers for names."""
    return str(10**17 + int(hashlib.sha256(text.encode()).hexdigest(), 16) % (9 * 10**17))


def _write(folder: Path, key: str, text: str) -> None:
    """Write one value under a name that MLflow takes; a slash makes a folder."""
    parts = [part.strip(" .") or "_" for part in NAME.sub("_", key).split("/")]
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _write_meta(path: Path, document: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(document, sort_keys=True, allow_unicode=True), "utf-8")
