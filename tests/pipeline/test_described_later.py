"""Described zoos that were made before: images that come later, and two who make one zoo at once."""

import shutil
import threading

import pytest

from engine.errors import ZooError
from engine.manifest import read_manifest
from engine.zoo.described import make
from engine.zoo.described.make import holding, make_zoo
from engine.zoo.folder import Zoo
from engine.zoo.making.adopt import adopt
from tests.made_imports import silent
from tests.pipeline.described_files import write_files

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def files(tmp_path):
    """A folder with all the files that a description names."""
    write_files(tmp_path / "files", tmp_path / "files" / "images")
    for folder in (tmp_path / "files" / "images" / "own").iterdir():
        folder.rename(tmp_path / "files" / folder.name)
    return tmp_path / "files"


def made(described, files, *without):
    return make_zoo(holding(str(described), [files]).without_images(without), silent, download=False)


def test_images_that_are_brought_later_change_nothing_else(described, files, tmp_path):
    folder = made(described, files, "svhn")
    (tmp_path / "trained").mkdir()
    shutil.copy(folder / "experts" / "mnist.safetensors", tmp_path / "trained" / "expert.safetensors")
    trained = {"mnist": (tmp_path / "trained", {"config": {"method": "standard"}})}
    adopt(Zoo.open(str(described)), trained, called="mine")
    before = {path: path.stat().st_ino for path in folder.rglob("*") if path.is_file()}
    shutil.rmtree(files / "own")  # the models
    (folder / "data" / "svhn").mkdir()  # of a process that was killed
    assert [item.label for item in holding(str(described), [files]).here] == ["images of svhn"]
    assert made(described, files, "mnist") == folder
    changed = {path for path, inode in before.items() if path.stat().st_ino != inode}
    assert changed == {folder / "zoo.yaml"}
    manifest = read_manifest(folder)
    assert list(manifest.expert_table) == ["mnist", "svhn", "mnist-mine"]
    assert [task.data for task in manifest.tasks] == ["data/mnist", "data/svhn"]
    assert Zoo.open(str(described)).data["svhn"].lengths["test"] == 20
    assert sorted(path.name for path in folder.glob(".*")) == []
    assert holding(str(described)) is None


def test_images_that_another_task_names_do_not_give_way(described, files):
    folder = made(described, files, "svhn")
    (folder / "data" / "mnist").rename(folder / "data" / "svhn")
    text = (folder / "zoo.yaml").read_text()
    (folder / "zoo.yaml").write_text(text.replace("data/mnist", "data/svhn"))
    with pytest.raises(ZooError, match=r"names .*svhn for another task"):
        made(described, files)
    assert len(list((folder / "data" / "svhn").iterdir())) == 2


def test_two_who_make_one_zoo_do_not_disturb_one_another(described, files, monkeypatch):
    found, begun, waited = holding(str(described), [files]), threading.Event(), threading.Event()
    real, ends = make._convert, []

    def convert(*given):
        begun.set()
        assert waited.wait(60)
        real(*given)
        ends.append("converted")

    def second(fraction, message=""):
        if "Waiting" in message:
            waited.set()

    monkeypatch.setattr(make, "_convert", convert)
    first = threading.Thread(target=lambda: ends.append(make_zoo(found, silent, download=False)))
    first.start()
    assert begun.wait(60)
    folder = make_zoo(found, second, download=False)
    first.join()
    assert ends == ["converted", folder]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_folder_of_files_that_is_no_zoo_is_not_replaced(described, files):
    final = holding(str(described), [files]).folder
    final.mkdir(parents=True)
    (final / "notes.txt").write_text("mine")
    with pytest.raises(ZooError, match="Move it away"):
        made(described, files)
    assert (final / "notes.txt").read_text() == "mine"
