"""Class names of data beside those of a manifest, where names are nearly alike."""

import pytest

from engine.errors import DataError
from engine.manifest import Task
from engine.zoo.classes import match_classes
from engine.zoo.images.brought import open_brought
from engine.zoo.images.data import open_task
from tests.image_files import write_class_folders


@pytest.mark.parametrize(
    "names",
    [("+", "-", "0", "1"), ("A", "a", "B", "b"), ("C", "C++", "Python"), ("C", "C++", "C_sharp", "c sharp!")],
)
def test_names_that_are_nearly_alike_are_told_apart(tmp_path, names):
    write_class_folders(tmp_path / "signs", *(f"test/{name}" for name in names), each=1)
    classes = open_brought(tmp_path / "signs").entry()["classes"]
    for listed in (classes, classes[::-1]):
        task = open_task(tmp_path, Task(name="signs", domain="in", data="signs", classes=listed))
        read = [listed[label] for label in task.labels("test")]
        folders = [name.split("/")[1] for name in task.source.names("test", range(len(names)))]
        assert read == [name.replace("_", " ") for name in folders]


def test_case_decides_nothing_where_signs_do():
    task = Task(name="a", domain="in", classes=("c++", "C", "python"))
    assert match_classes(("C", "C++", "Python"), task, ordered=False).positions.tolist() == [1, 0, 2]


def test_names_that_are_nearly_alike_and_differ_are_named():
    task = Task(name="a", domain="in", classes=("C", "C#"))
    with pytest.raises(DataError, match=r"Only in the data: 'C\+\+'; only in zoo\.yaml: 'C#'"):
        match_classes(("C", "C++"), task, ordered=False)
    (note,) = match_classes(("C", "C++"), task, ordered=True).notes
    assert "call class 'C#' 'C++'" in note
