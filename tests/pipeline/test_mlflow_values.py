"""A file store that is written here, and what MLflow 3.17.2 reads in it, beside the report of the run."""

import json

import pytest

from tests.pipeline.mlflow_made import CREATED, NAME, SECONDS, VALUES, VERSION, contents, report, write_store

EXPECTED = json.loads(VALUES.read_text())


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("taken"))


def test_the_store_is_the_one_that_mlflow_read(store):
    assert EXPECTED["made_with"] == f"mlflow-skinny {VERSION}"
    assert contents(store) == EXPECTED["files"]
    (artifacts,) = store.glob("*/*/artifacts")
    assert sorted(path.name for path in artifacts.iterdir()) == EXPECTED["read"]["artifacts"]


@pytest.mark.parametrize("form", ["read", "migrated"])
def test_mlflow_says_what_the_report_says(form):
    """As a file store, and after its own migration to SQLite."""
    found, written = EXPECTED[form], report()
    expected = {
        f"{part}/{state}/{task}": value
        for part, states in (("accuracy", written.accuracy), ("accuracy_sd", written.accuracy_sd))
        for state, tasks in states.items()
        for task, value in tasks.items()
        if value is not None
    }
    for part in ("l1", "l2", "cosine", "cka"):
        for state, bias in written.bias.items():
            values = getattr(bias, part).items()
            expected |= {f"{part}/{state}/{task}": value for task, value in values if value is not None}
    for state, average in written.average.items():
        values = {"within": average.within, "out": average.out, "h_score": average.h_score}
        expected |= {f"average/{state}/{part}": value for part, value in values.items() if value is not None}
    assert found["metrics"] == pytest.approx(expected, abs=1e-5)
    assert found["run"][1:] == [NAME, "FINISHED", int(1000 * CREATED), int(1000 * (CREATED + SECONDS))]
    assert found["params"]["transform/0/eta"] == "0.7"
    assert found["params"]["merge/scaling"] == "0.3"
    assert (found["tags"]["split"], found["tags"]["zoo_digest"]) == ("evaluate", written.zoo.digest)
