"""Images set aside read back as their classes, also where the names of classes are numbers."""

import json

import numpy as np
import pytest

from engine.errors import DataError
from engine.manifest import Task
from engine.zoo.images.brought import find_tasks, open_brought
from engine.zoo.images.data import open_task, read_source
from engine.zoo.images.set_aside import set_aside
from tests.image_files import write_class_folders, write_parquet


def brought_back(tmp_path, classes):
    task = open_brought(tmp_path / "images")
    (tmp_path / "zoo").mkdir()
    place = set_aside(task, tmp_path / "zoo", share=0.25, seed=0)
    return open_task(tmp_path / "zoo", Task(name="images", domain="in", data=place, classes=classes))


@pytest.mark.parametrize(
    ("names", "described", "expected"),
    [
        (("1", "2", "3"), None, (0, 1, 2)),
        (("0", "1", "2"), None, (0, 1, 2)),
        (("2019", "-5"), None, (0, 1)),
        (("1", "2", "3"), ("3", "2", "1"), (2, 1, 0)),
        (("0", "3"), ("0", "1", "2", "3"), (0, 3)),
        (("0", "1"), ("zero", "one", "two"), (0, 1)),
    ],
)
def test_number_folders_read_back_as_their_classes(tmp_path, names, described, expected):
    write_class_folders(tmp_path / "images", *names)
    if described:
        (tmp_path / "images.json").write_text(json.dumps({"class_names": described}))
    classes = open_brought(tmp_path / "images").entry()["classes"]
    data = brought_back(tmp_path, classes)
    folders = dict(zip(names, expected, strict=True))
    for split, count in (("test", len(names)), ("train", 3 * len(names))):
        listed = data.source.names(split, range(count))
        assert data.labels(split).tolist() == [folders[name.split("/")[1]] for name in listed]


def test_named_numbers_read_back_as_their_classes(tmp_path):
    write_parquet(tmp_path / "images" / "test.parquet", [0, 2, 2, 0, 0, 2, 2, 0], names=("10", "few", "2"))
    data = brought_back(tmp_path, ("10", "few", "2"))
    assert sorted(np.concatenate([data.labels(split) for split in ("test", "train")]).tolist()) == [0] * 4 + [2] * 4


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [([0, 5, 0, 0], ("1", "2"), "has the label 5, but names 2 classes"), ([0] * 4, ("7",), "the only one")],
)
def test_numbers_that_no_class_list_takes_are_refused(tmp_path, labels, names, message):
    write_parquet(tmp_path / "images" / "test.parquet", labels, names=names)
    with pytest.raises(DataError, match=message):
        brought_back(tmp_path, ())


def test_signs_that_only_look_like_numbers_are_words(tmp_path):
    write_class_folders(tmp_path / "images", "²", "³")
    (tmp_path / "images.csv").write_text("path,label\nimages/²/0.png,²\nimages/³/0.png,³\nimages/³/1.png,--3\n")
    assert read_source(tmp_path / "images.csv").brought == ("--3", "²", "³")


def test_an_image_that_is_missing_is_named(tmp_path):
    write_class_folders(tmp_path / "images", "a", "b")
    rows = [f"images/{name}/{number}.png,{name}" for name in "ab" for number in range(4)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows, "images/a/gone.png,a"]))
    (tmp_path / "zoo").mkdir()
    with pytest.raises(DataError, match=r"list\.csv: images/a/gone\.png cannot be read"):
        set_aside(open_brought(tmp_path / "list.csv"), tmp_path / "zoo", share=0.25, seed=0)


def test_paths_with_detours_are_brought_without_them(tmp_path):
    write_class_folders(tmp_path / "all" / "images", "a", "b")
    rows = [f"./images/{other}/..//{name}/{n}.png,{name}" for other, name in ("ab", "ba") for n in range(4)]
    (tmp_path / "all" / "list.csv").write_text("\n".join(["path,label", *rows]))
    (task,), left = find_tasks(tmp_path / "all")
    assert (task.name, left) == ("list", [])
    for name, bring in (("bring", task.bring), ("aside", lambda zoo: set_aside(task, zoo, share=0.25, seed=0))):
        place = bring(tmp_path / name)
        data = open_task(tmp_path / name, Task(name="list", domain="in", data=place, classes=("a", "b")))
        assert sum(data.lengths.values()) == 8
        assert not any(data.damaged(split) for split in data.lengths)
        assert all(".." not in file for split in data.lengths for file in data.source.names(split, range(2)))
