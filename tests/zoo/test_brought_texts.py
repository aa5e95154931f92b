"""Texts and text models that come together: which files are tables of one task, which folders are models."""

import json

import pytest

from engine.errors import DataError
from engine.zoo.importing.documents import kind_of_base
from engine.zoo.importing.loose import sort_files
from engine.zoo.importing.texts.classes import class_names
from engine.zoo.texts.brought import find_texts

LINE = json.dumps({"text": "a circle", "label": 0})


def write(path, text=LINE):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def test_a_place_holds_one_task_or_several(tmp_path):
    one = write(tmp_path / "news.jsonl")
    write(tmp_path / "mood" / "train.jsonl")
    write(tmp_path / "mood" / "validation-00000-of-00001.jsonl")
    write(tmp_path / "notes" / "readme.txt")
    assert find_texts(one) == ([one], [])
    assert find_texts(tmp_path / "mood") == ([tmp_path / "mood"], [])
    assert find_texts(tmp_path) == ([tmp_path / "mood", one], ["notes"])


@pytest.mark.parametrize("place", ["nowhere", "notes", "notes/readme.txt"])
def test_a_place_without_texts_says_what_is_expected(tmp_path, place):
    write(tmp_path / "notes" / "readme.txt")
    with pytest.raises(DataError, match=r"\.jsonl, \.csv, \.tsv or \.parquet"):
        find_texts(tmp_path / place)


def test_what_was_uploaded_is_sorted_into_models_and_data(tmp_path):
    for name in ("bert-base-uncased", "sst2"):
        write(tmp_path / name / "config.json", json.dumps({"model_type": "bert", "vocab_size": 10}))
        write(tmp_path / name / "vocab.txt", "a")
        write(tmp_path / name / "model.safetensors")
    write(tmp_path / "mood" / "train.jsonl")
    write(tmp_path / "mood" / "test.jsonl")
    write(tmp_path / "two" / "news.jsonl")
    write(tmp_path / "two" / "topics.csv")
    write(tmp_path / "grades.tsv")
    found = sort_files(tmp_path)
    assert found.models.base == tmp_path / "bert-base-uncased"
    assert found.models.experts == [tmp_path / "sst2"]
    assert {path.relative_to(tmp_path).as_posix() for path in found.data} == {
        "grades.tsv",
        "mood",
        "two/news.jsonl",
        "two/topics.csv",
    }
    assert kind_of_base(found.models.base).name == "text"
    assert kind_of_base(tmp_path / "sst2" / "model.safetensors").name == "text"


@pytest.mark.parametrize(
    "config", [None, "no JSON", {"model_type": "clip", "vocab_size": 9, "vision_config": {}}, {"model_type": 3}]
)
def test_a_base_is_of_images_where_nothing_says_otherwise(tmp_path, config):
    if config is not None:
        write(tmp_path / "config.json", config if isinstance(config, str) else json.dumps(config))
    assert kind_of_base(tmp_path).name == "image"


def test_classes_are_called_as_the_nearest_source_says(tmp_path):
    place = write(tmp_path / "news.jsonl")
    config = {"id2label": {"1": "world", "0": "sports"}}
    generic = {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}
    assert class_names(config, str(place), ("b", "a"), 2) == ["sports", "world"]
    assert class_names(generic, str(place), ("b", "a"), 2) == ["b", "a"]
    assert class_names({}, str(place), (), 2) == ["class 0", "class 1"]
    write(tmp_path / "news.json", json.dumps({"class_names": ["x", "y"]}))
    assert class_names(config, str(place), ("b", "a"), 2) == ["x", "y"]
