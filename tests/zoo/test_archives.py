"""Zip archives of images: every trick is refused before a byte is written, and unpacking is all or nothing."""

import io
import stat
import struct
import zipfile

import pytest

from engine.errors import DataError
from engine.zoo.images.data import read_source
from engine.zoo.images.readers import tree
from engine.zoo.making.unpack import unpack
from tests.image_files import encoded, picture, write_zip

QUIET = lambda fraction, message="": None  # noqa: E731
IMAGE = encoded(picture(0))


def packed(path, *entries, **more):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries:
            archive.writestr(name, content, **more)
    return path


def link(name):
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


def nested():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.png", IMAGE)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([("../a.png", IMAGE)], "leads out of the archive"),
        ([("a/../../b.png", IMAGE)], "leads out of the archive"),
        ([("/etc/a.png", IMAGE)], "leads out of the archive"),
        ([("C:/a.png", IMAGE)], "leads out of the archive"),
        ([("star\\..\\a.png", IMAGE)], "leads out of the archive"),
        ([(link("star/a.png"), "/etc/hostname")], "a link or device"),
        ([("star/a.zip", nested())], "another archive, 'star/a.zip'"),
        ([("star/a.png", IMAGE), ("star/run.sh", "x"), ("b.txt", "x")], r"2 files that are no images: star/run\.sh, b"),
        ([("README.txt", "x")], "1 files that are no images"),
        ([], "holds no images"),
        ([(f"star/{n}.png", b"") for n in range(60)], "60 files without content"),
        ([("a.png", IMAGE)], "outside class folders"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_tricks_are_refused_and_nothing_is_written(tmp_path, entries, message):
    path = packed(tmp_path / "x.zip", *entries)
    with pytest.raises(DataError, match=message):
        read_source(path)
    with pytest.raises(DataError, match=message):
        unpack(path, tmp_path / "zoo", "shapes", QUIET)
    assert not list((tmp_path / "zoo").rglob("*.*"))


def test_bombs_are_refused_by_ratio_size_and_count(tmp_path, monkeypatch):
    bomb = packed(tmp_path / "x.zip", ("star/a.png", bytes(4_000_000)), compress_type=zipfile.ZIP_DEFLATED)
    with pytest.raises(DataError, match="times its size"):
        read_source(bomb)
    path = write_zip(tmp_path / "y.zip")
    monkeypatch.setattr("engine.zoo.images.readers.tree.MAX_TOTAL_BYTES", 1000)
    with pytest.raises(DataError, match="would unpack to"):
        read_source(path)
    monkeypatch.undo()
    monkeypatch.setattr("engine.zoo.images.readers.tree.MAX_FILES", 3)
    with pytest.raises(DataError, match="lists 12 entries"):
        read_source(path)


def test_a_name_twice_is_refused(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate"):
        path = packed(tmp_path / "x.zip", ("star/a.png", IMAGE), ("star/a.png", IMAGE))
    with pytest.raises(DataError, match="twice"):
        read_source(path)


def test_unpacking_gives_class_folders(tmp_path):
    folder = unpack(write_zip(tmp_path / "x.zip"), tmp_path / "zoo", "shapes", QUIET)
    assert folder == tmp_path / "zoo" / "data" / "shapes"
    source = read_source(folder)
    assert source.lengths == {"test": 12}
    assert source.brought == ("circle", "square", "star")
    with pytest.raises(DataError, match="exists already"):
        unpack(tmp_path / "x.zip", tmp_path / "zoo", "shapes", QUIET)
    with pytest.raises(DataError, match="cannot name a task"):
        unpack(tmp_path / "x.zip", tmp_path / "zoo", "../shapes", QUIET)


def test_a_damaged_image_or_archive_leaves_nothing(tmp_path):
    bad = packed(tmp_path / "x.zip", ("star/a.png", IMAGE), ("circle/b.png", b"no image"))
    with pytest.raises(DataError, match=r"1 of 2 images cannot be decoded: circle/b\.png"):
        unpack(bad, tmp_path / "zoo", "shapes", QUIET)
    content = bytearray(write_zip(tmp_path / "y.zip").read_bytes())
    at = content.index(b"IDAT")
    content[at + 8 : at + 12] = struct.pack("<I", 1)
    (tmp_path / "y.zip").write_bytes(content)
    with pytest.raises(DataError, match="Bad CRC"):
        unpack(tmp_path / "y.zip", tmp_path / "zoo", "shapes", QUIET)
    assert not list((tmp_path / "zoo" / "data").glob("*"))


def test_an_archive_of_more_names_than_memory_is_refused_unparsed(tmp_path, monkeypatch):
    path = packed(tmp_path / "x.zip", *((f"star/{number}.png", IMAGE) for number in range(20)))
    monkeypatch.setattr(tree, "MAX_CONTENTS_BYTES", 1000)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(DataError, match=r"lists 20 entries in [\d,]+ bytes; at most"):
        read_source(path)


def test_an_archive_without_one_true_table_is_refused_unparsed(tmp_path, monkeypatch):
    path = packed(tmp_path / "x.zip", ("star/a.png", IMAGE))
    content = path.read_bytes()
    end = content.rindex(b"PK\x05\x06")
    path.write_bytes(content[:end] + b"PK\x06\x07" + bytes(16) + content[end:])
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(DataError, match="table of contents is missing or damaged"):
        read_source(path)


def test_arrays_by_the_thousand_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for number in range(1200):
            archive.writestr(f"{number}.npy", b"")
    with pytest.raises(DataError, match="lists 1,200 entries"):
        read_source(tmp_path / "x.npz")
