"""The catalogue of data sets: counts, orders, spellings, and how a manifest uses it."""

import subprocess
import sys

import pytest
import yaml

from engine.catalog.datasets import (
    MERGED_8,
    OUT_OF_DOMAIN_13,
    dataset_names,
    find_dataset,
    known_dataset,
    recognise_dataset,
)
from engine.errors import ZooError
from engine.manifest import Manifest, Task, read_manifest
from tests.tiny_zoo import make_zoo

PAPERS = {"sun397": 2, "stanford_cars": 8, "resisc45": 18, "eurosat": 3, "svhn": 1, "gtsrb": 3, "mnist": 1, "dtd": 8}
ALPHABETICAL = ("sun397", "resisc45", "dtd", "food101", "cifar100", "fer2013")


def test_the_papers_data_sets_are_all_there():
    assert dataset_names() == (*MERGED_8, *OUT_OF_DOMAIN_13)
    assert len(dataset_names()) == 21


@pytest.mark.parametrize("name", dataset_names())
def test_a_row_is_complete(name):
    row = known_dataset(name)
    assert len(row.classes) == len(set(row.classes)) == row.count
    assert row.homepage.startswith("http")
    assert row.source


@pytest.mark.parametrize("name", PAPERS)
def test_there_are_as_many_templates_as_the_papers_use(name):
    row = known_dataset(name)
    assert {len(found.templates) for found in row.prompts.values()} == {PAPERS[name]}


@pytest.mark.parametrize("name", ALPHABETICAL)
def test_alphabetical_orders(name):
    names = [label.replace(" ", "_") for label in known_dataset(name).label_names]
    if name == "sun397":  # sorted by /letter/place/kind, where the kind comes after the whole place
        names = [label.split("_")[0] for label in names]
    assert names == sorted(names)


def test_spellings_lead_to_one_row():
    for spelling in ("Cars", "StanfordCars", "tanganke/stanford_cars", "stanford-cars", "data/cars.npz"):
        assert recognise_dataset(spelling).name == "stanford_cars"
    assert find_dataset("ylecun/mnist").name == "mnist"
    assert recognise_dataset("fruit") is None
    with pytest.raises(ZooError, match="Did you mean 'eurosat'"):
        known_dataset("eurosatt")


def test_a_row_is_recognised_by_its_own_label_names():
    folders = sorted(known_dataset("eurosat").labels, reverse=True)
    assert recognise_dataset("pictures", folders).name == "eurosat"
    assert recognise_dataset("pictures", folders[1:]) is None
    assert recognise_dataset("pictures", [str(number) for number in range(10)]) is None


def test_a_task_takes_what_it_leaves_out_from_the_catalogue():
    task = Task(name="land", domain="in", dataset="EuroSAT", templates=("seen from above: {}",))
    assert len(task.classes) == 10
    assert task.templates == ("seen from above: {}",)
    assert task.licence == "MIT"
    with pytest.raises(ValueError, match="no data set 'nonsense'"):
        Task(name="land", domain="in", dataset="nonsense")


def test_digests_of_older_manifests_stay(tmp_path):
    manifest = read_manifest(make_zoo(tmp_path / "zoo"))
    for word in ("dataset", "corrupt", "root"):
        assert f'"{word}"' not in manifest.model_dump_json()
    document = yaml.safe_load(manifest.model_dump_json())
    document["tasks"][0]["corrupt"] = "skip"
    assert '"corrupt":"skip"' in Manifest.model_validate(document).model_dump_json()


@pytest.mark.processes
def test_the_catalogue_imports_no_torch():
    code = (
        "import sys; from engine.catalog.datasets import known_dataset as k; "
        "assert len(set(k('imagenet').classes)) == 1000; "
        "print([m for m in ('torch', 'open_clip') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
