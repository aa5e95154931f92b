"""Small pictures of any zoo's images."""

import io
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from engine.errors import DataError
from engine.manifest import Task, locate_zoo, read_manifest
from engine.zoo.folder import Zoo
from engine.zoo.images.data import open_task
from engine.zoo.images.thumbnails import content_key, is_ready, png, strip, thumbnails
from tests.image_files import CLASSES, write_folders, write_parquet, write_table, write_zip


def zoo_with(folder, images, compressed=True):
    save = np.savez_compressed if compressed else np.savez
    save(folder / "t.npz", test_x=images, test_y=np.zeros(len(images), np.int64))
    return Task(name="t", domain="in", data="t.npz", classes=("a", "b"))


def test_small_colour_images_are_kept_as_they_are(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8)
    found = thumbnails(tmp_path, zoo_with(tmp_path, images), [4, 0])
    np.testing.assert_array_equal(found, images[[4, 0]])


def test_grey_images_become_colour(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28), np.uint8)
    found = thumbnails(tmp_path, zoo_with(tmp_path, images))
    assert found.shape == (3, 28, 28, 3)
    np.testing.assert_array_equal(found[..., 1], images)


def test_large_images_shrink_and_oblong_ones_are_centred_on_grey(tmp_path):
    images = np.full((2, 60, 120, 3), 200, np.uint8)
    found = thumbnails(tmp_path, zoo_with(tmp_path, images, compressed=False))
    assert found.shape == (2, 48, 48, 3)
    assert (found[:, 12:36] == 200).all()
    assert (found[:, :12] == 127).all()
    assert (found[:, 36:] == 127).all()


def test_pictures_are_kept_on_disk_and_follow_the_file(tmp_path):
    cache = tmp_path / "cache"
    task = zoo_with(tmp_path, np.zeros((2, 8, 8, 3), np.uint8))
    assert thumbnails(tmp_path, task, cache=cache).max() == 0
    assert len(list(cache.glob("*.npy"))) == 1
    zoo_with(tmp_path, np.full((3, 8, 8, 3), 9, np.uint8))
    assert thumbnails(tmp_path, task, cache=cache).min() == 9
    assert len(list(cache.glob("*"))) == 2


def test_a_few_pictures_of_a_bundled_zoo_are_decoded_alone(tmp_path):
    folder = locate_zoo("mini8")
    task = read_manifest(folder).tasks[0]
    few = thumbnails(folder, task, [7, 3, 7], cache=tmp_path)
    assert not list(tmp_path.iterdir())
    every = thumbnails(folder, task, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    np.testing.assert_array_equal(few, every[[7, 3, 7]])


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_does_not_exist_is_refused(tmp_path, row):
    task = zoo_with(tmp_path, np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(DataError, match="has 2 test images"):
        thumbnails(tmp_path, task, [row])


def test_a_split_that_does_not_exist_is_refused(tmp_path):
    task = zoo_with(tmp_path, np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(DataError, match="no adapt images"):
        thumbnails(tmp_path, task, split="adapt")


def test_encoded_images_of_every_form_have_pictures(tmp_path):
    write_folders(tmp_path / "folders")
    write_zip(tmp_path / "packed.zip")
    write_parquet(tmp_path / "shards" / "test-0.parquet", [0, 1, 2] * 4)
    write_table(tmp_path)
    for data in ("folders", "packed.zip", "shards", "list.csv"):
        task = Task(name="t", domain="in", data=data, classes=CLASSES)
        labels = open_task(tmp_path, task).labels("test")
        found = thumbnails(tmp_path, task, [11, 0], side=20)
        assert found.shape == (2, 20, 20, 3)
        np.testing.assert_array_equal(found[:, 8:12].mean(axis=(1, 2)).argmax(axis=1), labels[[11, 0]], data)
        assert len(thumbnails(tmp_path, task)) == 12
        assert not is_ready(tmp_path, task)
        before = content_key(open_task(tmp_path, task), "test")
        assert before == content_key(open_task(tmp_path, task), "test")
    (tmp_path / "folders" / "star" / "0.jpg").write_bytes(b"broken")
    task = Task(name="t", domain="in", data="folders", classes=CLASSES)
    assert (thumbnails(tmp_path, task)[[8]] == 127).all()
    assert before != content_key(open_task(tmp_path, task), "test")


def test_a_strip_lays_images_out_on_a_transparent_ground():
    images = np.stack([np.full((4, 4, 3), value, np.uint8) for value in (10, 20, 30)])
    sheet = np.asarray(Image.open(io.BytesIO(strip(images, columns=2, gap=1))))
    assert sheet.shape == (9, 9, 4)
    assert sheet[0, 0].tolist() == [10, 10, 10, 255]
    assert sheet[0, 5, 0] == 20
    assert sheet[5, 0, 0] == 30
    assert sheet[5, 5, 3] == 0
    with pytest.raises(DataError):
        strip(images[:0])


def test_enlarging_repeats_pixels():
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    large = np.asarray(Image.open(io.BytesIO(png(image, 3))))
    np.testing.assert_array_equal(large[::3, ::3], image)


@pytest.mark.processes
def test_thumbnails_need_no_torch():
    code = "import sys, engine.zoo.images.thumbnails; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_images_of_a_bundled_zoo_are_read_at_once_and_those_of_a_strangers_parquet_are_not(tmp_path):
    zoo = locate_zoo("mini8")
    task = read_manifest(zoo).tasks[0]
    assert is_ready(zoo, task)
    found = thumbnails(zoo, task, cache=tmp_path / "cache")
    assert found.shape[1:] == (32, 32, 3)
    np.testing.assert_array_equal(found[:3], np.stack([*Zoo.open("mini8").data[task.name].samples("test")[:3]]))
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 1
    shutil.copytree(zoo / task.data, tmp_path / task.data)
    assert not is_ready(tmp_path, task)
