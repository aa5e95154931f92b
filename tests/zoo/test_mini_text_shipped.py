"""The shipped zoo of sentences is what its recipe writes, and its record is of it."""

import json

import numpy as np
import pytest
import yaml
from safetensors import safe_open

from benchmarks.zoo import targets
from engine.manifest import ASSETS
from engine.zoo.check import check_zoo
from engine.zoo.folder import Zoo
from engine.zoo.mini_text.build import Recipe, settings
from engine.zoo.mini_text.sentences import SIZES, vocabulary, write_all
from engine.zoo.mini_text.tasks import IN_DOMAIN, TASKS

SHIPPED = ASSETS / "zoos/mini_text"
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def zoo():
    return Zoo.open("mini_text")


@pytest.fixture(scope="module")
def written():
    return write_all()


@pytest.fixture(scope="module")
def said():
    return json.loads((SHIPPED / "build.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def record():
    return yaml.safe_load((SHIPPED / "record.yaml").read_text(encoding="utf-8"))


def test_the_shipped_sentences_are_written_again(zoo, written):
    for task in TASKS:
        data, splits = zoo.data[task.name], written[task.name]
        assert dict(data.lengths) == {split: SIZES[split] for split in ("test", "adapt", "val")}
        assert np.array_equal(data.labels("test"), splits["test"].labels)
        rows = np.arange(20)
        assert data.texts("test", rows) == splits["test"].texts[:20]


def test_the_shipped_zoo_is_in_order():
    lines = [str(finding) for finding in check_zoo("mini_text", progress=lambda fraction, message="": None)]
    assert sum("test texts classified correctly" in line for line in lines) == len(TASKS)
    assert not any(line.startswith("Error") for line in lines)
    assert sum(line.startswith("Warning") for line in lines) == 1, "of the heads alone"


def test_every_expert_holds_the_tensors_of_the_base():
    def layout(path):
        with safe_open(path, "np") as file:
            return {name: (file.get_slice(name).get_shape(), file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118

    base = layout(SHIPPED / "base.safetensors")
    assert {dtype for _, dtype in base.values()} == {"F16"}
    files = [SHIPPED / "experts" / f"{task.name}.safetensors" for task in IN_DOMAIN] + [
        SHIPPED / "multitask.safetensors"
    ]
    for path in files:
        assert layout(path) == base, path.name


def test_the_shipped_zoo_is_what_its_recipe_says(written, said):
    recipe = json.loads(json.dumps(settings(Recipe(), vocabulary(written))))
    assert {key: said[key] for key in recipe if key != "versions"} == {
        key: value for key, value in recipe.items() if key != "versions"
    }
    assert sum(file.stat().st_size for file in SHIPPED.rglob("*") if file.is_file()) < 9 * MEGABYTE


def test_the_record_is_of_this_zoo_and_of_held_out_texts(said, record):
    assert record["split"] == "test"
    assert len(record["training_seeds"]) == 5
    measured = record["zoos"][0]
    assert measured["seeds"] == said["seeds"]
    assert measured["by_task"]["pretrained"] == pytest.approx(said["accuracy"]["test"]["by_task"]["base"], abs=0.5)
    assert json.loads(json.dumps(targets(record["zoos"]))) == record["targets"]
