"""A made run written as MLflow's file store, and what MLflow 3.17.2 reads in it, as it is and migrated to SQLite.

``python -m tests.pipeline.mlflow_made`` writes ``mlflow_values.json``. It needs mlflow-skinny 3.17.2, SQLAlchemy and
Alembic beside this project's own requirements; MLflow pins other versions of some of these, so it lives in an
environment of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from engine.pipeline.export.mlflow import write_mlflow
from engine.recipe import MethodCall
from tests.made_run import made_report, write_run

VALUES = Path(__file__).with_name("mlflow_values.json")
VERSION = "3.17.2"
CREATED, SECONDS, NAME = 1_700_000_000.0, 12.5, "A made run: ü & <b>"


def report():
    """The report of the made run, with names that files do not take as they are."""
    recipe = made_report().recipe
    lwptv = MethodCall(method="lwptv", params={"eta": 0.7})
    return made_report(
        recipe=recipe.model_copy(update={"transforms": (lwptv,)}), accuracy_sd={"merged": {"digits": 0.5}}
    )


def write_store(folder):
    """Write the run into a file store; returns the store."""
    run = write_run(folder / "run", report())
    write_mlflow(run, folder / "mlruns", created=CREATED, seconds=SECONDS, name=NAME)
    return folder / "mlruns"


def contents(store):
    """Every file of a store but the artefacts: its path → its text, the store's own place left open."""
    files = [path for path in sorted(store.rglob("*")) if path.is_file() and "artifacts" not in path.parts]
    return {str(path.relative_to(store)): path.read_text().replace(store.as_uri(), "{store}") for path in files}


def read(client):
    """Everything that MLflow says of the one run."""
    (experiment,) = [found for found in client.search_experiments() if found.name != "Default"]
    chosen = "metrics.`accuracy/merged/digits` > 50 and params.`merge/method` = 'task_arithmetic'"
    (run,) = client.search_runs([experiment.experiment_id], filter_string=chosen)
    info = run.info
    found = {
        "experiment": experiment.name,
        "run": [info.run_id, info.run_name, info.status, info.start_time, info.end_time],
        "metrics": dict(run.data.metrics),
        "params": dict(run.data.params),
        "tags": dict(run.data.tags),
        "artifacts": sorted(file.path for file in client.list_artifacts(info.run_id)),
    }
    return {name: dict(sorted(part.items())) if isinstance(part, dict) else part for name, part in found.items()}


def main():
    """Write the store, let MLflow read it and migrate it, and keep what it says."""
    import mlflow
    from mlflow.tracking import MlflowClient

    if mlflow.__version__ != VERSION:
        sys.exit(f"MLflow {VERSION} is needed; this is {mlflow.__version__}.")
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    with tempfile.TemporaryDirectory() as place:
        store = write_store(Path(place))
        found = {"made_with": f"mlflow-skinny {VERSION}", "files": contents(store)}
        found["read"] = read(MlflowClient(tracking_uri=store.as_uri()))
        database = f"sqlite:///{place}/mlflow.db"
        command = ["mlflow", "migrate-filestore", "--source", str(store), "--target", database, "--no-progress"]
        subprocess.run([str(Path(sys.executable).with_name(command[0])), *command[1:]], check=True)
        found["migrated"] = read(MlflowClient(tracking_uri=database))
    VALUES.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
