"""`zoo init --base --data` on images of every form, with classes from the data, and experts trained on them."""

import json
import shutil

import numpy as np
import pytest
import yaml

from engine.errors import DataError
from engine.manifest import read_manifest
from engine.zoo.folder import Zoo
from engine.zoo.images.brought import find_tasks
from tests.image_files import CLASSES, encoded, picture, write_folders, write_mnist, write_parquet, write_zip
from tests.tiny_zoo import make_zoo

SPLITS = ("train", "test")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_zoo(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture
def init(base, tmp_path, command):
    """Call the command on some data; the new zoo, and what was printed."""

    def call(data, *more, heads="prototypes", name="mine"):
        arguments = ["zoo", "init", tmp_path / name, "--base", base, "--data", data, "--heads", heads, *more]
        code, out, err = command(*arguments)
        if code:
            assert not [path for path in tmp_path.iterdir() if name in path.name], "something was left behind"
            return None, err
        return Zoo.open(str(tmp_path / name)), out

    return call


def dominant(images):
    return images.reshape(len(images), -1, 3).mean(axis=1).argmax(axis=1)


def write_shards(folder):
    write_parquet(folder / "train-00000-of-00001.parquet", [0, 1, 2] * 4, names=("big_circle", "square", "star"))
    write_parquet(folder / "test-00000-of-00001.parquet", [2, 1, 0], names=("big_circle", "square", "star"))


def write_table(folder, name="list"):
    write_folders(folder / "pictures", splits=SPLITS)
    rows = [
        f"pictures/{s}/{c}/{n}.{'png' if n % 2 else 'jpg'},{c},{s}" for s in SPLITS for c in CLASSES for n in (0, 1)
    ]
    (folder / f"{name}.csv").write_text("path,label,split\n" + "\n".join(rows))


def write_arrays(folder, name, splits=SPLITS):
    images = np.stack([np.asarray(picture(label, n)) for n in range(6) for label in range(3)])
    arrays = {f"{split}_x": images for split in splits} | {f"{split}_y": np.arange(18) % 3 for split in splits}
    np.savez(folder / f"{name}.npz", **arrays)
    (folder / f"{name}.json").write_text(json.dumps({"class_names": list(CLASSES), "title": "Arrays"}))


@pytest.fixture
def images(tmp_path):
    """A folder with a task of every form, and a folder that is none."""
    folder = tmp_path / "images"
    write_folders(folder / "folders", splits=(*SPLITS, "val"))
    write_shards(folder / "shards")
    write_table(folder)
    write_arrays(folder, "arrays")
    shutil.make_archive(str(folder / "packed"), "zip", folder / "folders")
    (folder / "notes").mkdir()
    (folder / "notes" / "README.md").write_text("About the images.")
    (folder / "folders.json").write_text(json.dumps({"title": "In folders", "licence": "CC0", "suggested": "OOD"}))
    return folder


def test_every_form_becomes_a_task_that_experts_learn(init, images, tmp_path, command):
    zoo, out = init(images)
    assert "Left out, because there are no images in them: notes" in out
    tasks = zoo.manifest.task_table
    assert list(tasks) == ["arrays", "folders", "list", "packed", "shards"]
    assert tasks["shards"].classes == ("big circle", "square", "star")
    assert all(tasks[name].classes == CLASSES for name in ("arrays", "folders", "list", "packed"))
    assert (tasks["folders"].title, tasks["folders"].licence, tasks["folders"].domain) == ("In folders", "CC0", "out")
    assert {task.templates for task in tasks.values()} == {("a picture of a {}.",)}
    lengths = {name: zoo.data[name].lengths for name in tasks}
    assert lengths["folders"] == lengths["packed"] == {"test": 12, "val": 12, "train": 12}
    assert (lengths["list"], lengths["shards"]) == ({"test": 6, "train": 6}, {"test": 3, "train": 12})
    for name in tasks:
        data = zoo.data[name]
        np.testing.assert_array_equal(
            dominant(np.asarray(data.samples("train", fit=zoo.preprocess()))), data.labels("train")
        )
    shutil.rmtree(images)  # the zoo stands for itself
    assert command("zoo", "finetune", zoo.folder, "--steps", "2", "--batch-size", "2").code == 0
    assert [expert.task for expert in read_manifest(zoo.folder).experts] == ["arrays", "list", "packed", "shards"]


def whole_folders(folder):
    write_folders(folder / "set")
    return folder / "set"


def whole_splits(folder):
    write_folders(folder / "set", splits=SPLITS)
    return folder / "set"


def whole_archive(folder):
    return write_zip(folder / "set.zip")


def whole_shards(folder):
    write_shards(folder / "set")
    return folder / "set"


def whole_repository(folder):
    write_shards(folder / "set" / "data")
    (folder / "set" / "README.md").write_text("A data card.")
    return folder / "set"


def whole_file(folder):
    return write_parquet(folder / "set.parquet", [0, 1, 2] * 4)


def whole_table(folder):
    write_table(folder, "set")
    return folder / "set.csv"


@pytest.mark.parametrize(
    "make", [whole_folders, whole_splits, whole_archive, whole_shards, whole_repository, whole_file, whole_table]
)
def test_the_data_of_one_task_may_be_given_by_itself(make, tmp_path):
    (task,), left = find_tasks(make(tmp_path))
    assert (task.name, left) == ("set", [])
    assert task.source.lengths["test"] in (3, 6, 12)
    assert len(task.entry(["{}"])["classes"]) == 3


def test_test_images_are_set_aside_where_there_are_no_splits(init, tmp_path):
    folder = tmp_path / "images"
    write_folders(folder / "folders", each=5)
    write_zip(folder / "packed.zip", each=5)
    write_parquet(folder / "shard.parquet", [0, 1, 2] * 5)
    write_arrays(folder, "arrays", splits=("test",))
    rows = [
        f"folders/{name}/{n}.{'png' if n % 2 else 'jpg'},{label}"
        for label, name in enumerate(CLASSES)
        for n in range(5)
    ]
    (folder / "table.csv").write_text("path,label\n" + "\n".join(rows))
    (folder / "table.json").write_text(json.dumps({"class_names": ["0", "1", "2"]}))
    shutil.move(folder / "folders", folder / "all")
    (folder / "table.csv").write_text((folder / "table.csv").read_text().replace("folders/", "all/"))
    zoo, out = init(folder, "--test-share", "0.4")
    assert "packed: 40 % of every class are set aside as test images (seed 0)" in out
    assert list(zoo.data) == ["arrays", "packed", "shard", "table"]
    for name, data in zoo.data.items():
        each = 6 if name == "arrays" else 5
        assert data.lengths == {"test": 3 * 2, "train": 3 * (each - 2)}, name
        np.testing.assert_array_equal(np.bincount(data.labels("test")), [2, 2, 2])
        for split in SPLITS:
            pixels = np.asarray(data.samples(split, fit=zoo.preprocess()))
            np.testing.assert_array_equal(dominant(pixels), data.labels(split))
    names = {seed: set() for seed in (0, 1)}
    for seed in names:
        other = init(folder, "--test-share", "0.4", "--seed", seed, name=f"seed{seed}")[0].data["packed"].source
        names[seed] = set(other.names("test", range(6)))
        assert not names[seed] & set(other.names("train", range(9)))
    assert names[0] != names[1]
    assert names[0] == set(zoo.data["packed"].source.names("test", range(6)))


def test_without_training_images_it_says_what_is_missing(init, tmp_path):
    write_folders(tmp_path / "images" / "shapes")
    found, err = init(tmp_path / "images")
    assert found is None
    assert "no training images to build a head from" in err
    assert "--test-share 0.2" in err
    assert "leaves nothing to train on" in init(tmp_path / "images", "--test-share", "1")[1]
    write_folders(tmp_path / "few" / "shapes", each=1)
    assert "has one image a class; none can be set aside" in init(tmp_path / "few", "--test-share", "0.5")[1]


def test_known_data_sets_and_torchvisions_bring_their_classes(init, tmp_path, monkeypatch):
    for number, name in enumerate(
        (
            "AnnualCrop",
            "Forest",
            "HerbaceousVegetation",
            "Highway",
            "Industrial",
            "Pasture",
            "PermanentCrop",
            "Residential",
            "River",
            "SeaLake",
        )
    ):
        for split in SPLITS:
            (tmp_path / "images" / "land" / split / name).mkdir(parents=True)
            (tmp_path / "images" / "land" / split / name / "a.png").write_bytes(encoded(picture(number % 3)))
    zoo, _ = init(tmp_path / "images")
    assert zoo.manifest.task_table["land"].dataset == "eurosat"
    assert zoo.data["land"].labels("train").tolist() == list(range(10))
    (tmp_path / "given").mkdir()
    for number in range(10):
        for split in SPLITS:
            (tmp_path / "given" / "mnist" / split / f"digit {number}").mkdir(parents=True)
            (tmp_path / "given" / "mnist" / split / f"digit {number}" / "a.png").write_bytes(
                encoded(picture(number % 3))
            )
    assert init(tmp_path / "given", name="named")[0].manifest.task_table["mnist"].classes[9] == "digit 9"
    write_mnist(tmp_path / "sets", count=20)
    monkeypatch.setenv("MERGELENS_TORCHVISION", str(tmp_path / "sets"))
    zoo, _ = init("torchvision:MNIST", name="digits")
    entry = zoo.manifest.task_table["MNIST"]
    assert (entry.data, entry.dataset, len(entry.classes)) == ("torchvision:MNIST", "mnist", 10)
    assert zoo.data["MNIST"].lengths == {"test": 20, "train": 40}


def test_damaged_images_are_left_out_only_by_choice(init, images):
    (images / "folders" / "train" / "star" / "2.jpg").write_bytes(b"broken")
    found, err = init(images)
    assert found is None
    assert "train/star/2.jpg" in err
    assert "--skip-corrupt" in err
    zoo, out = init(images, "--skip-corrupt")
    assert "1 images (1 train) cannot be decoded and are left out: train/star/2.jpg" in out
    assert {task.corrupt for task in zoo.manifest.tasks} == {"skip"}


def test_links_take_no_room(init, images):
    zoo, _ = init(images, "--link")
    for name in ("arrays.npz", "folders/test/star/1.png", "shards/test-00000-of-00001.parquet"):
        assert (zoo.folder / "data" / name).stat().st_ino == (images / name).stat().st_ino
    copied, _ = init(images, name="copied")
    assert (copied.folder / "data" / "arrays.npz").stat().st_ino != (images / "arrays.npz").stat().st_ino


def test_what_cannot_be_understood_is_refused_with_the_reason(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    with pytest.raises(DataError, match=r"no images of a known form.*class folders"):
        find_tasks(folder)
    with pytest.raises(DataError, match="There is no"):
        find_tasks(tmp_path / "nowhere")
    write_zip(folder / "set.zip")
    write_folders(folder / "set" / "deep", splits=SPLITS)
    with pytest.raises(DataError, match="would all be the task 'set'"):
        find_tasks(folder)
    shutil.rmtree(folder / "set")
    (folder / "loose").mkdir()
    (folder / "loose" / "a.png").write_bytes(encoded(picture(0)))
    with pytest.raises(DataError, match=r"loose: .*outside class folders"):
        find_tasks(folder)
    (folder / "loose" / "a.png").unlink()
    np.savez(folder / "numbers.npz", test_x=np.zeros((3, 8, 8, 3), np.uint8), test_y=np.arange(3))
    tasks = {task.name: task for task in find_tasks(folder)[0]}
    with pytest.raises(DataError, match=r"numbers\.json is missing; it must list the `class_names`"):
        tasks["numbers"].entry(["{}"])
    (folder / "numbers.json").write_text(json.dumps({"class_names": "abc"}))
    with pytest.raises(DataError, match="must be a list"):
        find_tasks(folder)[0][0].entry(["{}"])


def test_the_manifest_is_plain_yaml_without_places_of_this_machine(init, images):
    zoo, _ = init(images)
    text = (zoo.folder / "zoo.yaml").read_text()
    assert str(images) not in text
    assert yaml.safe_load(text)["tasks"][2]["data"] == "data/list/list.csv"
