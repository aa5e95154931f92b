"""Every form that images come in gives the same images, labels, splits and digests that follow the content."""

import os
import struct
import sys
import time

import numpy as np
import pytest
from PIL import Image

from engine.errors import DataError
from engine.manifest import Preprocess, Task
from engine.store import Store
from engine.zoo.images.brought import find_tasks
from engine.zoo.images.data import find_corrupt, open_task, read_source
from engine.zoo.images.decoding import CorruptImage, decode, fit
from tests.image_files import (
    CLASSES,
    encoded,
    picture,
    write_class_folders,
    write_folders,
    write_mnist,
    write_parquet,
    write_zip,
)

FIT = Preprocess(size=16, mean=(0.5,) * 3, std=(0.3,) * 3)


def open_data(folder, data, **more):
    return open_task(folder, Task(**{"name": "shapes", "domain": "in", "data": data, "classes": CLASSES, **more}))


def dominant(images):
    return images.reshape(len(images), -1, 3).mean(axis=1).argmax(axis=1)


@pytest.fixture
def forms(tmp_path):
    """One set of twelve images in every form; the path of each by its name."""
    write_folders(tmp_path / "folders")
    write_folders(tmp_path / "split", splits=("train", "val", "test"))
    write_zip(tmp_path / "shapes.zip")
    for shard in range(2):
        labels = [0, 1, 2] * 2
        write_parquet(tmp_path / "shards" / "data" / f"test-0000{shard}-of-00002-abc.parquet", labels)
    write_parquet(tmp_path / "shards" / "data" / "train-00000-of-00001.parquet", [2, 1])
    write_parquet(tmp_path / "plain.parquet", [0, 1, 2] * 4, plain=True)
    rows = [f"split/{split}/{name}/1.png,{name},{split}" for split in ("test", "train") for name in CLASSES]
    (tmp_path / "list.csv").write_text("path,label,split\n" + "\n".join(rows))
    return tmp_path


@pytest.mark.parametrize(
    ("data", "lengths"),
    [
        ("folders", {"test": 12}),
        ("split", {"test": 12, "val": 12, "train": 12}),
        ("shapes.zip", {"test": 12}),
        ("shards", {"test": 12, "train": 2}),
        ("plain.parquet", {"test": 12}),
        ("list.csv", {"test": 3, "train": 3}),
    ],
)
def test_a_form_gives_its_images_and_labels(forms, data, lengths):
    task = open_data(forms, data)
    assert task.lengths == lengths
    for split in lengths:
        images = task.samples(split, fit=FIT)
        pixels = images[:]
        assert pixels.shape == (lengths[split], 16, 16, 3)
        np.testing.assert_array_equal(dominant(pixels), task.labels(split))
        chosen = np.array([len(images) - 1, 0])
        np.testing.assert_array_equal(task.samples(split, chosen, FIT)[:], pixels[chosen])
        np.testing.assert_array_equal(images[chosen], pixels[chosen])
    assert find_corrupt(task, "test") == []


def test_shards_of_no_split_are_no_test_images_beside_others(tmp_path):
    for name in ("train-00000-of-00001", "test-00000-of-00001", "extra-00000-of-00001"):
        write_parquet(tmp_path / "svhn" / f"{name}.parquet", [0, 1, 2])
    with pytest.raises(
        DataError, match=r"extra-00000-of-00001\.parquet, which no split .* beside shards of test, train"
    ):
        read_source(tmp_path / "svhn")
    with pytest.raises(DataError, match=r"extra-00000-of-00001\.parquet, which no split is called"):
        find_tasks(tmp_path / "svhn")
    for name, labels in (("train_0", [0, 1, 2] * 2), ("test_0", [0, 1, 2])):
        write_parquet(tmp_path / "numbered" / f"{name}.parquet", labels)
    assert read_source(tmp_path / "numbered").lengths == {"test": 3, "train": 6}
    assert read_source(tmp_path / "numbered" / "train_0.parquet").lengths == {"test": 6}
    for number in range(2):
        write_parquet(tmp_path / "plain" / f"{number:05d}.parquet", [0, 1, 2])
    assert read_source(tmp_path / "plain").lengths == {"test": 6}


def test_slices_read_ahead_give_the_same_images(forms):
    images = open_data(forms, "shards").samples("test", fit=FIT)
    parts = [images[start : start + 5] for start in range(0, len(images), 5)]
    np.testing.assert_array_equal(np.concatenate(parts), images[:])
    assert [len(part) for part in parts] == [5, 5, 2]


def test_more_than_memory_holds_is_refused(forms, monkeypatch):
    images = open_data(forms, "folders").samples("test", fit=FIT)
    monkeypatch.setattr("engine.zoo.images.stream.MAX_ARRAY_BYTES", 5 * 3 * 16**2)
    assert len(images[:5]) == 5
    for ask in (lambda: images[:6], lambda: np.asarray(images)):
        with pytest.raises(DataError, match=r"GiB at once\. Sample fewer"):
            ask()


def test_torchvision_reads_what_lies_on_disk_and_downloads_nothing(tmp_path, monkeypatch):
    digits = tuple("0123456789")
    with pytest.raises(DataError, match=r"finds no MNIST .* MERGELENS_TORCHVISION"):
        open_data(tmp_path, "torchvision:MNIST", classes=digits)
    write_mnist(tmp_path / "sets")
    monkeypatch.setenv("MERGELENS_TORCHVISION", str(tmp_path / "sets"))
    task = open_data(tmp_path, "torchvision:MNIST", name="mnist", classes=digits)
    assert task.lengths == {"test": 12, "train": 24}
    assert task.labels("test").tolist() == [*range(10), 0, 1]
    assert task.samples("test", [3], FIT)[:].max() == 60
    monkeypatch.delenv("MERGELENS_TORCHVISION")
    assert open_data(tmp_path, "torchvision:MNIST", root="sets", classes=digits).lengths["test"] == 12
    with pytest.raises(DataError, match="Did you mean 'CIFAR10'"):
        open_data(tmp_path, "torchvision:CIFAR11")


def test_imagenets_folders_are_read_as_torchvision_leaves_them(tmp_path):
    with pytest.raises(DataError, match=r"holds no ImageNet: a folder `val`"):
        open_data(tmp_path, "torchvision:ImageNet", root="sets")
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "meta.bin").write_bytes(b"never unpickled")
    for number, synset in enumerate(("n01484850", "n01440764", "n01443537")):
        folder = tmp_path / "sets" / "val" / synset
        folder.mkdir(parents=True)
        (folder / "ILSVRC2012_val_00000293.JPEG").write_bytes(encoded(picture(number), "JPEG"))
    task = open_data(tmp_path, "torchvision:ImageNet", root="sets", classes=("tench", "goldfish", "great white shark"))
    assert task.lengths == {"test": 3}
    assert task.labels("test").tolist() == [0, 1, 2]
    assert dominant(task.samples("test", fit=FIT)[:]).tolist() == [1, 2, 0]
    assert "classes are taken in the data's order" in task.notes[-1]


def test_pcam_needs_h5py_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"finds no PCAM .*pip install h5py"):
        open_data(tmp_path, "torchvision:PCAM", root="sets", classes=("healthy", "sick"))


def test_pcams_files_are_read_where_h5py_is_installed(tmp_path):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "sets" / "pcam").mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 255, (6, 96, 96, 3), dtype=np.uint8)
    labels = np.array([0, 1, 1, 0, 1, 0], np.uint8)
    stem = "camelyonpatch_level_2_split"
    for split, rows in (("test", slice(0, 4)), ("valid", slice(4, 6))):
        for letter, values in (("x", images[rows]), ("y", labels[rows].reshape(-1, 1, 1, 1))):
            with h5py.File(tmp_path / "sets" / "pcam" / f"{stem}_{split}_{letter}.h5", "w") as file:
                file[letter] = values
    task = open_task(tmp_path, Task(name="pcam", domain="in", data="torchvision:PCAM", root="sets", dataset="pcam"))
    assert task.lengths == {"test": 4, "val": 2}
    assert task.labels("test").tolist() == [0, 1, 1, 0]
    whole = Preprocess(size=96, mean=(0.5,) * 3, std=(0.3,) * 3)
    np.testing.assert_array_equal(task.samples("test", [3, 1], whole)[:], images[[3, 1]])
    (tmp_path / "sets" / "pcam" / f"{stem}_test_y.h5").write_bytes(b"no HDF5")
    with pytest.raises(DataError, match="labels of PCAM cannot be read"):
        open_data(tmp_path, "torchvision:PCAM", root="sets", classes=("healthy", "sick")).labels("test")


def test_class_names_decide_not_their_order(tmp_path):
    write_folders(tmp_path / "folders", each=1)
    turned = open_data(tmp_path, "folders", classes=("Star", "CIRCLE", "square"))
    assert turned.labels("test").tolist() == [1, 2, 0]
    write_parquet(tmp_path / "a.parquet", [0, 1, 2])
    assert open_data(tmp_path, "a.parquet", classes=("star", "circle", "square")).labels("test").tolist() == [1, 2, 0]
    other = open_data(tmp_path, "a.parquet", classes=("disc", "box", "asterisk"))
    assert other.labels("test").tolist() == [0, 1, 2]
    assert "'circle'" in other.notes[0]
    with pytest.raises(DataError, match=r"Only in the data: 'circle'.*only in zoo\.yaml: 'disc'"):
        open_data(tmp_path, "folders", classes=("disc", "square", "star")).labels("test")


def test_a_known_data_sets_own_label_names_are_understood(tmp_path):
    for number, name in enumerate(("SeaLake", "AnnualCrop", "Forest")):
        (tmp_path / "land" / name).mkdir(parents=True)
        (tmp_path / "land" / name / "a.png").write_bytes(encoded(picture(number)))
    task = open_task(tmp_path, Task(name="land", domain="in", data="land", dataset="eurosat"))
    assert task.labels("test").tolist() == [0, 1, 9]
    assert "7 classes have no images" in task.notes[0]


def test_a_digest_follows_the_content_and_is_remembered(forms, monkeypatch):
    store = Store(forms / "store")
    old = time.time() - 60
    for file in (forms / "folders").rglob("*.*"):
        os.utime(file, (old, old))
    first = open_data(forms, "folders").digest(store.digest_file)
    monkeypatch.setattr("engine.store.digests.sha256_of", lambda path: pytest.fail("read again"))
    assert open_data(forms, "folders").digest(store.digest_file) == first
    monkeypatch.undo()
    (forms / "folders" / "star" / "0.jpg").write_bytes(encoded(picture(0), "JPEG"))
    changed = open_data(forms, "folders").digest(store.digest_file)
    (forms / "folders" / "star" / "0.jpg").rename(forms / "folders" / "circle" / "9.jpg")
    assert len({first, changed, open_data(forms, "folders").digest(store.digest_file)}) == 3


def test_corrupt_images_are_counted_and_named(forms):
    (forms / "folders" / "star" / "0.jpg").write_bytes(b"no image")
    good = (forms / "folders" / "star" / "1.png").read_bytes()
    (forms / "folders" / "star" / "1.png").write_bytes(good[: len(good) // 2])
    task = open_data(forms, "folders")
    found = find_corrupt(task, "test")
    assert [row for row, _ in found] == [8, 9]
    with pytest.raises(DataError, match=r"2 of 12 images cannot be decoded: star/0\.jpg: .*; star/1\.png: .*skip"):
        task.samples("test", fit=FIT)[6:12]
    assert task.samples("test", fit=FIT)[:3].shape == (3, 16, 16, 3)
    kept = open_data(forms, "folders", corrupt="skip")
    assert "2 images (2 test) cannot be decoded and are left out: star/0.jpg" in kept.skipped()
    assert kept.usable("test").tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 10, 11]
    assert kept.samples("test", kept.usable("test"), FIT)[:].shape[0] == 10


def see_through(mode, colour):
    """An image of one colour, which its file calls transparent."""
    image = Image.new(mode, (8, 8), colour)
    image.info["transparency"] = colour
    return image


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("L", (8, 8), 100), (100, 100, 100)),
        (Image.fromarray(np.full((8, 8), 25_700, np.uint16)), (100, 100, 100)),
        (Image.new("RGBA", (8, 8), (200, 0, 0, 0)), (255, 255, 255)),
        (Image.new("LA", (8, 8), (90, 255)), (90, 90, 90)),
        (Image.new("RGB", (8, 8), (10, 20, 30)).quantize(4), (10, 20, 30)),
        (see_through("L", 7), (255, 255, 255)),
        (see_through("RGB", (7, 7, 7)), (255, 255, 255)),
    ],
)
def test_every_kind_of_pixel_becomes_rgb(image, expected):
    made = decode(encoded(image), "x")
    assert made.mode == "RGB"
    assert made.getpixel((3, 3)) == expected


@pytest.mark.parametrize("order", ["<", ">"])
def test_dark_values_of_16_bits_stay_dark_in_either_order_of_bytes(order):
    tags = [(256, 4), (257, 4), (258, 16), (259, 1), (262, 1), (273, 8), (277, 1), (278, 4), (279, 32)]
    fields = b"".join(struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0) for tag, value in tags)
    start = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, 8 + 32)
    pixels = np.full((4, 4), 200, f"{order}u2").tobytes()
    raw = start + pixels + struct.pack(f"{order}H", len(tags)) + fields + bytes(4)
    assert decode(raw, "x").getpixel((0, 0)) == (0, 0, 0)


def test_a_cameras_orientation_is_obeyed():
    image = Image.new("RGB", (8, 4))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    assert decode(encoded(image, "JPEG", exif=exif), "x").size == (4, 8)


@pytest.mark.parametrize("side", [9_600, 20_000])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bomb_is_refused_before_it_is_decoded(side, monkeypatch):
    small = encoded(Image.new("1", (side, side)))
    assert len(small) < 200_000
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda image: pytest.fail("decoded"))
    with pytest.raises(CorruptImage, match=r"at most|limit"):
        decode(small, "bomb.png")


def test_fitting_is_the_encoders_own_preprocessing():
    from open_clip.transform import image_transform

    image = picture(0, size=(50, 31))
    usual = image_transform(16, is_train=False, mean=(0, 0, 0), std=(1, 1, 1))(image)
    np.testing.assert_allclose(fit(image, FIT) / 255, usual.permute(1, 2, 0).numpy(), atol=1e-6)


@pytest.mark.parametrize("size", [(1, 20_000), (20_000, 1), (3, 5_000)])
def test_the_middle_of_a_long_strip_is_seen_and_no_more_is_resized(size, monkeypatch):
    made, resize = [], Image.Image.resize
    monkeypatch.setattr(Image.Image, "resize", lambda image, to, *how: made.append(to) or resize(image, to, *how))
    strip = Image.new("RGB", size, (90, 90, 90))
    box = [(0, side) if side < 8 else (side * 3 // 8, side * 5 // 8) for side in size]
    strip.paste((10, 20, 30), (box[0][0], box[1][0], box[0][1], box[1][1]))
    seen = fit(strip, FIT)
    assert seen.shape == (16, 16, 3)
    assert seen[8, 8].tolist() == [10, 20, 30]
    assert max(made[0]) == 64 * 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file;y2\na.png;1", "columns `path` and `label`"),
        ("path,label\n../a.png,star", "line 2 names '../a.png', which lies outside"),
        ("path,label\n../shapes/a.png,star", "line 2 names '../shapes/a.png', which .* leads through what does"),
        ("path,label\nlink/../a.png,star", "line 2 names 'link/../a.png'"),
        ("path,label,split\na.png,star,somewhere", "split 'somewhere'"),
        ("path,label,Split\na.png,star,test\nb.png,star,", "line 3 has no Split; train, test, val and adapt are known"),
        ("path,label\na.png,", "line 2 has no label"),
        ("path,label\n", "lists no images"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, text, message):
    folder = tmp_path / "shapes"
    (folder / "far" / "away").mkdir(parents=True)
    (folder / "link").symlink_to(folder / "far" / "away")
    (folder / "list.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        open_data(folder, "list.csv")


def test_folders_of_unlabelled_images_are_no_classes(tmp_path):
    write_class_folders(tmp_path / "pets", "test/cat", "test/dog", "adapt/all", "adapt/cat")
    source = read_source(tmp_path / "pets")
    assert source.brought == ("cat", "dog")
    assert source.labels("adapt").tolist() == [-1] * 4 + [0] * 4
    rows = ["test/cat/0.png,cat,test", "test/dog/0.png,dog,test", "adapt/all/0.png,unknown,adapt"]
    (tmp_path / "pets" / "list.csv").write_text("path,label,split\n" + "\n".join(rows))
    listed = read_source(tmp_path / "pets" / "list.csv")
    assert listed.brought == ("cat", "dog")
    assert listed.labels("adapt").tolist() == [-1]
    write_parquet(tmp_path / "shards" / "test.parquet", [0, 1], names=("cat", "dog"))
    write_parquet(tmp_path / "shards" / "adapt.parquet", [0, 0], names=("everything",))
    shards = read_source(tmp_path / "shards")
    assert (shards.brought, shards.ordered, shards.notes) == (("cat", "dog"), True, ())
    write_parquet(tmp_path / "shards" / "train.parquet", [0, 1], names=("dog", "cat"))
    shards = read_source(tmp_path / "shards")
    assert set(shards.brought) == {"cat", "dog"}
    assert shards.labels("adapt").tolist() == [-1, -1]


def test_a_folder_beside_splits_is_refused(tmp_path):
    write_class_folders(tmp_path / "a", "train/cat", "train/dog", "test/cat", "test/dog", "examples")
    message = r"class folders in test, train, and beside them examples/ \(4 images\).*name it after a split"
    with pytest.raises(DataError, match=message):
        read_source(tmp_path / "a")
    (tmp_path / "a" / "examples").rename(tmp_path / "a" / "unlabelled")
    assert read_source(tmp_path / "a").lengths == {"test": 8, "train": 8, "adapt": 4}


def test_a_class_may_be_called_like_a_split(tmp_path):
    source = read_source(write_class_folders(tmp_path / "vehicles", "train", "car", "test"))
    assert source.brought == ("car", "test", "train")
    assert source.lengths == {"test": 12}


def test_other_bad_data(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(DataError, match="damaged or no parquet"):
        open_data(tmp_path, "x.parquet")
    write_folders(tmp_path / "folders", each=1)
    (tmp_path / "folders" / "loose.png").write_bytes(encoded(picture(0)))
    with pytest.raises(DataError, match=r"1 images outside class folders, loose\.png"):
        open_data(tmp_path, "folders")
    (tmp_path / "folders" / "loose.png").unlink()
    (tmp_path / "folders" / "star" / "out.png").symlink_to("/etc/hostname")
    with pytest.raises(DataError, match="symbolic link"):
        open_data(tmp_path, "folders")
    (tmp_path / "x.tar").write_bytes(b"")
    with pytest.raises(DataError, match="none of the known forms"):
        open_data(tmp_path, "x.tar")
