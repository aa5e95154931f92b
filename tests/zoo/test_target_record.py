"""Records of the targets that a zoo was built for, and files of that name that are something else."""

from pathlib import Path

import pytest
import yaml

from engine.manifest import ASSETS
from engine.zoo.making.targets import target_record

TARGET = {"target": "experts on average", "measured": 96.04, "least": 93, "most": None, "met": True}
RECORD = {
    "split": "test",
    "training_seeds": [0, 1],
    "targets": [TARGET, TARGET | {"target": "AUROC", "measured": 72.59, "least": 80, "most": 95, "met": False}],
    "n": {"digits": 500, "letters": 300},
    "zoos": [{"seeds": {}}],
}


def written(folder: Path, document) -> Path:
    (folder / "record.yaml").write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return folder


def test_missed_targets_are_named_with_their_numbers(tmp_path):
    record = target_record(written(tmp_path, RECORD))
    assert record.missed_in_words() == "Missed: AUROC (72.6; aim 80 to 95)."
    assert [target.aim for target in record.targets] == ["at least 93", "80 to 95"]
    assert record.provenance("images") == (
        "n = 300 to 500 test images a task; one set of experts; means over training seeds 0, 1 of the calibrators. "
        "Accuracies and AUROCs in percent, differences in points."
    )
    most = TARGET | {"target": "size", "measured": 61, "least": None, "most": 52, "met": False}
    both = target_record(written(tmp_path, RECORD | {"beside": [most], "n": {"digits": 500}, "zoos": [{}, {}]}))
    assert both.missed_in_words() == "Missed: AUROC (72.6; aim 80 to 95) and size (61.0; aim at most 52)."
    assert both.provenance("texts") == (
        "n = 500 test texts a task; means over 2 sets of experts and training seeds 0, 1 of the calibrators. "
        "Accuracies and AUROCs in percent, differences in points."
    )


@pytest.mark.parametrize(
    "document",
    [
        "a: [",
        "just words",
        {"split": "test"},
        RECORD | {"targets": []},
        RECORD | {"n": {}},
        RECORD | {"targets": [TARGET | {"measured": float("nan")}]},
        RECORD | {"targets": [TARGET] * 101},
        RECORD | {"targets": [TARGET | {"least": None}]},
        RECORD | {"beside": [{"target": "size", "measured": 61, "met": True}]},
    ],
)
def test_a_file_of_that_name_that_is_no_such_record_is_left_alone(tmp_path, document):
    assert target_record(written(tmp_path, document)) is None


def test_folders_without_a_record_have_none(tmp_path):
    assert target_record(tmp_path) is None
    assert target_record(tmp_path / "nowhere") is None


@pytest.mark.parametrize("zoo", ["mini8", "mini_text"])
def test_the_bundled_zoos_say_what_they_reach(zoo):
    record = target_record(ASSETS / "zoos" / zoo)
    assert len(record.targets) >= 10
    assert len(record.training_seeds) == 5
    for target in (*record.targets, *record.beside):
        low, high = target.least or float("-inf"), target.most or float("inf")
        assert target.met == (low <= target.measured <= high), target.target
