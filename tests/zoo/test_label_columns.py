"""Labels in parquet shards: columns of every type, shards whose class names differ."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.errors import DataError
from engine.manifest import Task
from engine.zoo.images.data import open_task, read_source
from tests.image_files import encoded, picture, write_parquet

WORDS = ["dog", "cat", None, "dog"]
IMAGES = [encoded(picture(number % 3, number)) for number in range(4)]


def shard(path, labels, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image": IMAGES, **more, "label": labels, "id": [0, 1, 2, 3]}), path)
    return read_source(path)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
@pytest.mark.parametrize("as_dictionary", [False, True])
def test_words_of_every_type_are_labels(tmp_path, kind, as_dictionary):
    labels = pa.array(WORDS, kind)
    if as_dictionary:
        labels = pa.array(WORDS).dictionary_encode() if kind == pa.string_view() else labels.dictionary_encode()
    source = shard(tmp_path / "a.parquet", labels)
    assert (source.brought, source.ordered) == (("cat", "dog"), False)
    assert source.labels("test").tolist() == [1, 0, -1, 1]


@pytest.mark.parametrize("kind", ["object", "str", "category"])
def test_words_that_pandas_writes_are_labels(tmp_path, kind):
    frame = pd.DataFrame({"image": IMAGES, "label": pd.Series(["dog", "cat", "cow", "dog"], dtype=kind), "width": 24})
    frame.to_parquet(tmp_path / "a.parquet")
    source = read_source(tmp_path / "a.parquet")
    assert source.brought == ("cat", "cow", "dog")
    assert source.labels("test").tolist() == [2, 0, 1, 2]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (pa.array([1.0, 0.0, None, float("nan")]), [1, 0, -1, -1]),
        (pa.array([1.0, 0.0, 2.0, 3.0], pa.float32()), [1, 0, 2, 3]),
        (pa.array(np.array([1, 0, 2, 3], np.float16)), [1, 0, 2, 3]),
        (pa.array([200, 0, None, 3], pa.uint8()), [200, 0, -1, 3]),
        (pa.array([7, 5, None, 7]).dictionary_encode(), [7, 5, -1, 7]),
        (pa.array([True, False, None, True]), [1, 0, -1, 1]),
        (pa.nulls(4), [-1, -1, -1, -1]),
        (pa.nulls(4, pa.large_string()), [-1, -1, -1, -1]),
    ],
)
def test_numbers_of_every_type_are_labels(tmp_path, labels, expected):
    source = shard(tmp_path / "a.parquet", labels)
    assert source.brought == ()
    assert source.labels("test").tolist() == expected
    assert source.labels("test").dtype == np.int64


def test_no_label_is_not_the_class_none(tmp_path):
    assert shard(tmp_path / "a.parquet", ["None", None, "some", "None"]).labels("test").tolist() == [0, -1, 1, 0]


@pytest.mark.parametrize("odd", [0.5, float("inf"), 1e300])
def test_numbers_that_are_no_classes_are_refused(tmp_path, odd):
    with pytest.raises(DataError, match=r"a\.parquet has the label .* in its column `label`; whole numbers"):
        shard(tmp_path / "a.parquet", [1.0, odd, 0.0, 1.0]).labels("test")
    with pytest.raises(DataError, match="cannot be read"):
        shard(tmp_path / "a.parquet", pa.array([2**64 - 1, 0, 1, 2], pa.uint64())).labels("test")


@pytest.mark.parametrize(
    ("labels", "kind"), [([[0], [1], [0, 1], []], "list<"), ([{"a": 1}] * 4, "struct<"), ([b"cat"] * 4, "binary")]
)
def test_a_label_column_that_cannot_be_used_is_named(tmp_path, labels, kind):
    with pytest.raises(DataError, match=f"a\\.parquet has a column `label` of {kind}.*Convert the column"):
        shard(tmp_path / "a.parquet", labels)
    assert shard(tmp_path / "b.parquet", [0, 1, 2, 3], target=labels).labels("test").tolist() == [0, 1, 2, 3]


def test_shards_that_agree_are_read_as_ever(tmp_path):
    write_parquet(tmp_path / "a" / "test.parquet", [2, 0], names=("dog", "cat", "cow"))
    write_parquet(tmp_path / "a" / "train.parquet", [1, 2, 7], names=("dog", "cat", "cow"))
    shard(tmp_path / "a" / "val.parquet", [0, 1, 2, 2])  # whose metadata were lost
    source = read_source(tmp_path / "a")
    assert (source.brought, source.ordered, source.notes) == (("dog", "cat", "cow"), True, ())
    assert [source.labels(split).tolist() for split in ("test", "train", "val")] == [[2, 0], [1, 2, 7], [0, 1, 2, 2]]


def test_shards_with_other_names_are_read_by_their_names(tmp_path):
    write_parquet(tmp_path / "a" / "test.parquet", [0, 1, -1], names=("cat", "dog"))
    write_parquet(tmp_path / "a" / "train.parquet", [0, 1, 2], names=("dog", "cat", "cow"))
    write_parquet(tmp_path / "a" / "val.parquet", [0, 1], names=("emu", "cow"))
    source = read_source(tmp_path / "a")
    assert (source.brought, source.ordered) == (("dog", "cat", "cow", "emu"), False)
    assert [source.labels(split).tolist() for split in ("test", "train", "val")] == [[1, 0, -1], [0, 1, 2], [3, 2]]
    assert "Its shards list different class names" in source.notes[0]
    task = open_task(tmp_path, Task(name="a", domain="in", data="a", classes=("cat", "cow", "dog", "emu")))
    assert [task.labels(split).tolist() for split in ("train", "val")] == [[2, 0, 1], [3, 1]]
    other = Task(name="a", domain="in", data="a", classes=("Katze", "Kuh", "Hund", "Emu"))
    with pytest.raises(DataError, match="Only in the data: 'dog'"):  # whose order would it be?
        open_task(tmp_path, other).labels("train")


def test_a_label_without_a_name_is_refused_where_names_differ(tmp_path):
    write_parquet(tmp_path / "test.parquet", [0, 2], names=("cat", "dog"))
    write_parquet(tmp_path / "train.parquet", [0, 1, 2], names=("cat", "cow", "dog"))
    shard(tmp_path / "val.parquet", [0, 1, 2, 2])
    source = read_source(tmp_path)
    with pytest.raises(DataError, match=r"test\.parquet has the label 2, but lists 2 class names \(0 to 1: cat, dog\)"):
        source.labels("test")
    with pytest.raises(DataError, match=r"val\.parquet has numbers as labels and names no classes.*cat, cow, dog"):
        source.labels("val")
    shard(tmp_path / "val.parquet", [-1] * 4)
    assert read_source(tmp_path).labels("val").tolist() == [-1] * 4


def test_words_beside_named_numbers_are_read_by_their_names(tmp_path):
    shard(tmp_path / "test.parquet", pa.array(["cow", "cat", "cow", "ant"], pa.large_string()))
    write_parquet(tmp_path / "train.parquet", [0, 1, 2], names=("dog", "cat", "cow"))
    source = read_source(tmp_path)
    assert source.brought == ("ant", "cat", "cow", "dog")
    assert source.labels("test").tolist() == [2, 1, 2, 0]
    assert source.labels("train").tolist() == [3, 1, 2]


def test_columns_may_begin_with_a_capital(tmp_path):
    pq.write_table(pa.table({"Thumb": IMAGES, "Image": IMAGES[::-1], "Label": [2, 0, 1, 2]}), tmp_path / "a.parquet")
    source = read_source(tmp_path / "a.parquet")
    assert source.labels("test").tolist() == [2, 0, 1, 2]
    assert source.encoded("test", 0) == IMAGES[3]
    assert shard(tmp_path / "b.parquet", [0, 1, 2, 3], Label=[3, 3, 3, 3]).labels("test").tolist() == [0, 1, 2, 3]


def test_whole_numbers_of_a_table_may_have_a_zero_behind_the_point(tmp_path):
    (tmp_path / "a.csv").write_text("path,label\nx.png,1.0\ny.png,0.0\nz.png,2\n")
    source = read_source(tmp_path / "a.csv")
    assert (source.brought, source.labels("test").tolist()) == ((), [1, 0, 2])
