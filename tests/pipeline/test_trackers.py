"""A run taken to MLflow's file store, and its images to one Parquet table: read back by what others read with."""

import io
import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from safetensors.numpy import load_file
from typer.testing import CliRunner

from engine.__main__ import app
from engine.errors import EngineError
from tests.tiny_zoo import make_zoo

RECIPE = {
    "merge": {"method": "task_arithmetic"},
    "transforms": [{"method": "lwptv"}],
    "calibrators": [{"method": "surgery", "params": {"rank": 2, "steps": 3}}],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a finished run with a projection, and its zoo."""
    folder = tmp_path_factory.mktemp("taken")
    zoo = make_zoo(folder / "zoo")
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"zoo": str(zoo), **RECIPE}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MERGELENS_STORE", str(folder / "store"))
        asked = ["run", str(recipe), "--out", str(folder / "run"), "-q", "--projection", "pca"]
        assert CliRunner().invoke(app, asked).exit_code == 0
    return folder / "run", zoo


def export(folder, to, *more):
    return CliRunner().invoke(app, ["export", str(folder), "--to", str(to), *more])


def test_images_become_a_table_that_pandas_and_arrow_read(run, tmp_path):
    folder, _ = run
    result = export(folder, tmp_path / "images.parquet")
    assert result.exit_code == 0, result.exception
    table = pq.read_table(tmp_path / "images.parquet")
    frame = pd.read_parquet(tmp_path / "images.parquet")
    report = json.loads((folder / "report.json").read_text())
    assert len(frame) == sum(count["evaluate"] for count in report["samples"].values())
    assert frame["id"].is_unique
    assert str(table.schema.field("image").type) == "struct<bytes: binary, path: string>"
    assert str(table.schema.field("vector").type) == "list<element: float>"
    features = load_file(folder / "features.safetensors")
    beta = frame[frame["task"] == "beta"]
    np.testing.assert_array_equal(np.stack(beta["vector"]), features["merged/beta/evaluate"])
    for state in ("pretrained", "merged", "surgery"):
        accuracy = 100 * beta[f"correct_{state}"].astype(float).mean()
        assert accuracy == pytest.approx(report["accuracy"][state]["beta"])
    picture = Image.open(io.BytesIO(beta.iloc[0]["image"]["bytes"]))
    stored = np.load(run[1] / "data" / "beta.npz")["test_x"][beta.iloc[0]["index"]]
    np.testing.assert_array_equal(np.asarray(picture), stored)
    points = pd.read_parquet(folder / "projections" / "pca" / "projection.parquet")
    points = points[(points["state"] == "merged") & (points["task"] == "beta")].set_index("index")
    placed = beta[beta["projection_x"].notna()].set_index("index")
    assert len(placed) == len(points)
    assert placed["projection_y"].to_dict() == points["y"].to_dict()


def test_a_state_without_features_is_refused(run, tmp_path):
    from engine.pipeline.export.atlas import write_atlas

    with pytest.raises(EngineError, match="no features of the state 'nothing'"):
        write_atlas(run[0], tmp_path / "a.parquet", "nothing")
    with pytest.raises(EngineError, match="no features of its images"):
        write_atlas(_bare(run[0], tmp_path), tmp_path / "a.parquet")


def _bare(folder, tmp_path):
    place = tmp_path / "bare"
    place.mkdir()
    (place / "report.json").write_text((folder / "report.json").read_text())
    return place


def test_a_run_in_mlflows_file_store(run, tmp_path):
    """Its layout: an experiment, in it the run; a file a value; metrics as milliseconds, value, step."""
    folder, _ = run
    store = tmp_path / "mlruns"
    assert export(folder, store, "--format", "mlflow").exit_code == 0
    (meta,) = store.glob("*/*/meta.yaml")
    place, document = meta.parent, yaml.safe_load(meta.read_text())
    experiment = yaml.safe_load((place.parent / "meta.yaml").read_text())
    assert experiment["experiment_id"] == place.parent.name == document["experiment_id"]
    assert place.parent.name.isdigit()
    assert (document["run_id"], document["status"], document["lifecycle_stage"]) == (place.name, 3, "active")
    report = json.loads((folder / "report.json").read_text())
    when, value, step = (place / "metrics" / "accuracy" / "surgery" / "alpha").read_text().split()
    assert float(value) == report["accuracy"]["surgery"]["alpha"]
    assert (int(when), int(step)) == (document["end_time"], 0)
    params = {str(f.relative_to(place / "params")): f.read_text() for f in (place / "params").rglob("*") if f.is_file()}
    assert params["merge/scaling"] == "0.3"
    assert params["calibrator/surgery/rank"] == "2"
    assert params["n/outside"] == str(report["samples"]["outside"]["evaluate"])
    tags = {file.name: file.read_text() for file in (place / "tags").iterdir()}
    assert (tags["split"], tags["seeds"], tags["protocol"]) == ("evaluate", "0", "held_out")
    assert (place / "artifacts" / "report.json").read_bytes() == (folder / "report.json").read_bytes()
    assert "already" in str(export(folder, store, "--format", "mlflow").exception)
    assert {path.name for path in store.rglob("*.writing")} == set()
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    assert "no file store" in str(export(folder, other, "--format", "mlflow").exception)


def test_a_file_store_whose_first_run_was_cut_off_takes_it_again(run, tmp_path):
    folder, _ = run
    store = tmp_path / "mlruns"
    assert export(folder, store, "--format", "mlflow").exit_code == 0
    (meta,) = store.glob("*/*/meta.yaml")
    (meta.parent.parent / "meta.yaml").unlink()
    meta.parent.rename(meta.parent.with_name(f".{meta.parent.name}.elsewhere.writing"))
    assert export(folder, store, "--format", "mlflow").exit_code == 0
    assert meta.is_file()
    assert (meta.parent.parent / "meta.yaml").is_file()
