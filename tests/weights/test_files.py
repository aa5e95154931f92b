"""Reading and writing checkpoints: what fits is read exactly, what does not is refused, nothing is executed."""

import json
import os
import pickle
import re
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from engine.errors import CheckpointError
from engine.weights import Memory, PickledFile, SafetensorsFile, open_weights, write_weights

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def example(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "matrix": torch.randn(3, 5, generator=generator),
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 4),
        "kernel": torch.randn(2, 3, 2, 1, generator=generator),
    }
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def raw(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reads_what_the_library_wrote(tmp_path, dtype):
    tensors = example(dtype)
    save_file(tensors, tmp_path / "a.safetensors")
    found = open_weights(tmp_path / "a.safetensors")
    assert set(found.names) == set(tensors)
    for name, tensor in tensors.items():
        assert found.shape(name) == tuple(tensor.shape)
        assert found.dtype(name) == dtype
        assert torch.equal(found.tensor(name), tensor)


def test_the_library_reads_what_was_written_in_mixed_dtypes(tmp_path):
    tensors = {f"{dtype}".removeprefix("torch."): torch.arange(3).to(dtype) for dtype in reversed(DTYPES)}
    write_weights(tmp_path / "a.safetensors", Memory(tensors), metadata={"method": "test"})
    found = load_file(tmp_path / "a.safetensors")
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )
    file = SafetensorsFile(tmp_path / "a.safetensors")
    assert file.names == tuple(tensors), "the order given is kept"
    assert file.metadata == {"method": "test"}


def test_a_dtype_for_the_file_leaves_integers_alone(tmp_path):
    write_weights(tmp_path / "a", Memory({"x": torch.ones(3), "n": torch.arange(2)}), dtype=torch.bfloat16)
    found = open_weights(tmp_path / "a")
    assert (found.dtype("x"), found.dtype("n")) == (torch.bfloat16, torch.int64)


def test_reading_gives_tensors_nobody_else_sees(tmp_path):
    write_weights(tmp_path / "a", Memory(example()))
    for weights in (open_weights(tmp_path / "a"), Memory(example())):
        weights.tensor("matrix").zero_()
        assert torch.equal(weights.tensor("matrix"), example()["matrix"])


def test_read_into_converts(tmp_path):
    write_weights(tmp_path / "a", Memory(example(torch.float16)))
    for weights in (open_weights(tmp_path / "a"), Memory(example(torch.float16))):
        out = torch.empty(3, 5)
        weights.read_into("matrix", out)
        assert torch.equal(out, example(torch.float16)["matrix"].float())


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"x": ENTRY}, b"1234", "truncated"),
        ({"x": ENTRY}, b"1" * 12, "4 bytes more"),
        ({"x": ENTRY, "y": {**ENTRY, "data_offsets": [4, 12]}}, b"1" * 12, "overlaps"),
        ({"x": ENTRY, "y": {**ENTRY, "data_offsets": [12, 20]}}, b"1" * 20, "gap"),
        ({"x": {**ENTRY, "shape": [3]}}, b"1" * 8, "needs 12 bytes"),
        ({"x": {**ENTRY, "shape": [-2]}}, b"1" * 8, "no valid shape"),
        ({"x": {**ENTRY, "shape": [True, 2]}}, b"1" * 8, "no valid shape"),
        ({"x": {**ENTRY, "data_offsets": [8, 0]}}, b"1" * 8, "span -8"),
        ({"x": {**ENTRY, "data_offsets": ["0", 8]}}, b"1" * 8, "no valid data_offsets"),
        ({"x": {**ENTRY, "dtype": "F8_E5M2"}}, b"1" * 8, "dtype 'F8_E5M2'"),
        ({"x": {**ENTRY, "dtype": ["F32"]}}, b"1" * 8, "dtype"),
        ({"x": {"dtype": "F32"}}, b"", "not described"),
        ({"x": 3}, b"", "not described"),
        ([1, 2], b"", "not a table"),
        (b'{"x": {}, "x": {}}', b"", "twice"),
        (b"{nonsense", b"", "not JSON"),
        (b"\xff\xfe{}", b"", "not JSON"),
        (b"[" * 100_000, b"", "not JSON"),
    ],
)
def test_damaged_headers_are_refused(tmp_path, header, data, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        open_weights(raw(tmp_path / "a.safetensors", header, data))
    assert "a.safetensors" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no header"),
        (b"\0" * 16, "no header"),
        (b"hello, I am text", "at most"),
        ((100).to_bytes(8, "little") + b"{}", "2 of its 100 bytes"),
    ],
)
def test_files_that_are_not_safetensors_are_refused(tmp_path, content, message):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        open_weights(tmp_path / "a")


def test_missing_files_and_folders_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="There is no weights file"):
        open_weights(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="is a folder"):
        open_weights(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_weights(tmp_path / "absent" / "a", Memory(example()))


def test_a_file_that_changes_underneath_is_refused(tmp_path):
    write_weights(tmp_path / "a", Memory(example()))
    file = open_weights(tmp_path / "a")
    write_weights(tmp_path / "a", Memory(example()))
    with pytest.raises(CheckpointError, match="was changed"):
        file.tensor("matrix")


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    write_weights(tmp_path / "a", Memory(example()))
    before = (tmp_path / "a").read_bytes()

    def stop(fraction: float, message: str = "") -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_weights(tmp_path / "a", Memory({"other": torch.ones(4)}), progress=stop)
    assert (tmp_path / "a").read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["a"]


def test_progress_ends_at_one(tmp_path):
    seen = []
    write_weights(tmp_path / "a", Memory(example()), progress=lambda fraction, message="": seen.append(fraction))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("nested", [True, False])
def test_torch_files_of_tensors_are_read(tmp_path, zipped, nested):
    table = {name: tensor for name, tensor in example(torch.float16).items()}
    torch.save(
        {"state_dict": table, "epoch": 3} if nested else table, tmp_path / "a", _use_new_zipfile_serialization=zipped
    )
    found = open_weights(tmp_path / "a")
    assert isinstance(found, PickledFile)
    assert found.names == tuple(table)
    assert all(torch.equal(found.tensor(name), tensor) for name, tensor in table.items())
    again = pickle.loads(pickle.dumps(found))
    assert torch.equal(again.tensor("matrix"), table["matrix"])


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_nothing_in_a_pickle_is_executed(tmp_path, zipped):
    canary = tmp_path / "canary"
    torch.save({"x": Canary(canary)}, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match="holds no named tensors"):
        open_weights(tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Canary(canary)))
    with pytest.raises(CheckpointError):
        open_weights(tmp_path / "b.pt")
    assert not canary.exists()
    os.system(f"touch {canary}")
    assert canary.exists(), "the canary would have sung"


def test_a_whole_pickled_model_is_refused_with_the_way_out(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=re.escape("model.state_dict()")):
        open_weights(tmp_path / "a.pt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": 3}, "holds no named tensors"),
        ([torch.ones(2)], "content is a list"),
        ({}, "content is a dict"),
        ({"x": torch.ones(1).expand(10**9)}, "made to fill the memory"),
        ({"x": torch.eye(3).to_sparse()}, "x is a sparse tensor"),
        ({"x": torch.ones(2, dtype=torch.complex64)}, "ComplexFloatStorage"),
    ],
)
def test_torch_files_of_other_things_are_refused(tmp_path, content, message):
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=message):
        open_weights(tmp_path / "a.pt")


def test_a_compressed_torch_file_is_refused_unread(tmp_path):
    """Two hundred kilobytes that would become two hundred megabytes."""
    torch.save({"x": torch.zeros(50_000_000)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(tmp_path / "a.pt", "w", 8) as small:
        for name in plain.namelist():
            small.writestr(name, plain.read(name))
    assert (tmp_path / "a.pt").stat().st_size < 1_000_000
    with pytest.raises(CheckpointError, match="is compressed or encrypted"):
        open_weights(tmp_path / "a.pt")


def test_a_damaged_torch_file_is_refused(tmp_path):
    torch.save(example(), tmp_path / "a.pt")
    (tmp_path / "a.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:300])
    with pytest.raises(CheckpointError, match="is truncated"):
        open_weights(tmp_path / "a.pt")


def test_what_a_damaged_file_says_of_itself_is_cut():
    from engine.errors import MOST_CHARACTERS, CheckpointError

    text = str(CheckpointError("start " + "a" * 10**6 + " end"))
    assert len(text) < MOST_CHARACTERS + 10
    assert text.startswith("start ")
    assert text.endswith(" end")
