"""Described zoos of texts: base, experts, tokenizer and data found in a local folder as the hub lays them out."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from engine.errors import DataError, ZooError
from engine.experiments.sizes import shape_of
from engine.manifest import locate_description, read_manifest
from engine.pipeline.local import run_recipe
from engine.recipe import parse_recipe
from engine.store import Store
from engine.zoo.described.make import holding, make_zoo
from engine.zoo.described.sources import wanted
from engine.zoo.folder import Zoo
from engine.zoo.modalities import MODALITIES
from engine.zoo.texts.tables import TextTable
from tests.made_text_models import NOUNS, VOCABULARY, classifiers, t5
from tests.pipeline.test_text_grades import likeness

SHIPPED = {"bert-base-uncased-glue8": 128, "flan-t5-base-glue8": 256}
PROMPT = "the '{sentence1}' is '{sentence2}'"


def write_data(folder, task, labels, split="validation"):
    """Parquet files as GLUE's repository has them: the texts, and a test split with hidden labels."""
    (folder / task).mkdir(parents=True)
    for name, shown in ((split, labels), ("test", [-1] * 4)):
        words = [VOCABULARY[5 + row % 9] for row in range(len(shown))]
        table = {"sentence1": words, "sentence2": words[::-1], "label": shown, "idx": list(range(len(shown)))}
        pq.write_table(pa.table(table), folder / task / f"{name}-00000-of-00001.parquet")


def describe(folder, tasks, **reading):
    """Write a description of models and data of the owner `own`."""
    document = {
        "format": 1,
        "name": "words",
        "modality": "text",
        "backbone": {
            "architecture": "config.json",
            "weights": "hf:own/base",
            "tokenisation": {"vocabulary": "tokenizer.json", "length": 16, **reading},
        },
        "experts": [
            {"name": task["name"], "task": task["name"], "weights": f"hf:own/{task['name']}"} for task in tasks
        ],
        "tasks": [{"domain": "in", "data": f"hf:own/words:{task['name']}", **task} for task in tasks],
    }
    path = folder / "words.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def silent(fraction, message=""):
    pass


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_descriptions_name_every_file_with_its_place(name):
    manifest = read_manifest(locate_description(name))
    items = wanted(manifest, locate_description(name).parent)
    assert [item.role for item in items] == ["base", *["expert"] * 8, *["data"] * 8]
    assert all(set(MODALITIES["text"].tokenizers) < set(item.beside) for item in items)
    splits = {item.path: item.split for item in items if item.role == "data"}
    assert splits == {task.name: task.split for task in manifest.tasks}
    assert splits["mnli"] == "validation_matched"
    assert items[-1].label == "texts of stsb"
    assert manifest.backbone.tokenisation.length == SHIPPED[name]
    assert manifest.task_table["stsb"].measure == "spearman"
    sizes = shape_of(name).sizes
    assert (sizes["w"], sizes["blocks"]) == (768, 12)
    for task in manifest.tasks:  # every column that a prompt names is one of GLUE's
        assert ("{" in task.prompt) == (name.startswith("flan"))


def test_classifiers_and_a_regression_become_a_zoo(tmp_path, monkeypatch):
    monkeypatch.setenv("MERGELENS_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "files" / "own"
    classifiers("bert", place, ("nouns",))
    likeness(place)
    write_data(place / "words", "nouns", [row % 3 for row in range(12)], "validation_matched")
    write_data(place / "words", "stsb", [row / 3 for row in range(12)])
    tasks = [
        {"name": "nouns", "classes": list(NOUNS), "split": "validation_matched"},
        {"name": "stsb", "grades": [0, 1, 2, 3, 4, 5], "measure": "spearman", "split": "validation"},
    ]
    description = describe(tmp_path, tasks)
    (tmp_path / "config.json").write_text((place / "base" / "config.json").read_text())
    found = holding(str(description), [tmp_path / "files"])
    assert not found.missing
    folder = make_zoo(found, silent, download=False)
    zoo = Zoo.open(str(folder))
    assert zoo.manifest.task_table["stsb"].grades == (0, 1, 2, 3, 4, 5)
    assert zoo.data["nouns"].lengths["test"] == 12
    assert zoo.data["stsb"].labels("test").tolist()[:4] == [0, 0, 1, 1]
    report = run_recipe(parse_recipe({"zoo": str(folder), "merge": {"method": "ties"}}), Store(tmp_path / "store"))
    assert report.accuracy["expert"]["nouns"] is not None
    assert report.accuracy["expert"]["stsb"] is None


def test_answers_are_asked_for_with_the_prompt(tmp_path, monkeypatch):
    monkeypatch.setenv("MERGELENS_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "files" / "own"
    t5(place, ("answers", "nouns"))
    write_data(place / "words", "answers", [row % 2 for row in range(8)])
    write_data(place / "words", "nouns", [row % 3 for row in range(8)])
    tasks = [
        {"name": "answers", "classes": ["yes", "no"], "split": "validation", "prompt": PROMPT},
        {"name": "nouns", "classes": list(NOUNS), "split": "validation", "prompt": PROMPT},
    ]
    description = describe(tmp_path, tasks, answers=True)
    (tmp_path / "config.json").write_text((place / "base" / "config.json").read_text())
    folder = make_zoo(holding(str(description), [tmp_path / "files"]), silent, download=False)
    zoo = Zoo.open(str(folder))
    assert zoo.data["answers"].texts("test", [0]) == [(f"the '{VOCABULARY[5]}' is '{VOCABULARY[12]}'", "")]
    assert zoo.manifest.task_table["answers"].prompt == PROMPT
    report = run_recipe(parse_recipe({"zoo": str(folder), "merge": {"method": "ties"}}), Store(tmp_path / "store"))
    assert set(report.accuracy["merged"]) == {"answers", "nouns"}
    with pytest.raises(DataError, match=r"asks for a text in sentence3"):
        TextTable(place / "words" / "answers", "{sentence3}?")


def test_what_is_missing_is_named_with_its_place(tmp_path):
    tasks = [{"name": "nouns", "classes": list(NOUNS), "split": "validation"}]
    found = holding(str(describe(tmp_path, tasks)), [tmp_path])
    with pytest.raises(ZooError, match=r"own/words/ with the parquet files of the split 'validation'"):
        make_zoo(found, silent, download=False)
