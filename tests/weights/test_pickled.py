"""Whole pickled modules are read without running anything in them; damaged and malicious ones are refused."""

import io
import os
import pickle
import struct
import time
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from engine.archives import contents_of
from engine.errors import CheckpointError
from engine.weights import PickledFile, SafetensorsFile, is_torch_file
from engine.weights.pickle_machine import Made, read_pickle
from tests.made_checkpoints import clip, visual_of, write_head, write_pickle

PREFIX = "model."


@pytest.fixture
def visual():
    return visual_of(clip())


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_whole_module_gives_what_its_state_dict_would(tmp_path, visual, legacy):
    path = write_pickle(tmp_path / "finetuned.pt", visual, legacy=legacy)
    file = PickledFile(path)
    assert file.whole_module
    assert file.classes[""] == "src.modeling.ImageEncoder"
    for name, tensor in visual.items():
        assert torch.equal(file.tensor(PREFIX + name), tensor)
    assert f"{PREFIX}token_embedding.weight" in file.names
    assert not any("attn_mask" in name for name in file.names)  # a buffer that is not saved
    assert file.settings["model.visual.transformer.resblocks.0.attn.num_heads"] == 2


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_views_strides_dtypes_and_shared_storages(tmp_path, legacy):
    whole = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "transposed": whole.T,
        "part": whole[1:3, ::2],
        "half": whole.half(),
        "brain": whole.bfloat16(),
        "number": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "whole": torch.arange(5),
        "shared": whole,
    }
    torch.save({"epoch": 3, "state_dict": tensors}, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    file = PickledFile(tmp_path / "a.pt")
    assert file.names == tuple(tensors)
    assert not file.whole_module
    for name, tensor in tensors.items():
        assert file.dtype(name) == tensor.dtype
        assert torch.equal(file.tensor(name), tensor)
        assert file.tensor(name).is_contiguous()


def test_a_script_module_is_read(tmp_path):
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.visual = nn.Linear(3, 4)
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return self.visual(x)

    model = Small()
    torch.jit.script(model).save(str(tmp_path / "jit.pt"))
    file = PickledFile(tmp_path / "jit.pt")
    assert {name: file.tensor(name).tolist() for name in file.names} == {
        name: tensor.tolist() for name, tensor in model.state_dict().items()
    }


class Canary:
    """Unpickled the ordinary way, it leaves a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_nothing_in_a_pickle_is_called(tmp_path, visual, legacy, protocol):
    sung = tmp_path / "sung"
    path = tmp_path / "canary.pt"
    content = {"extra": Canary(sung), "state_dict": visual}
    torch.save(content, path, pickle_protocol=protocol, _use_new_zipfile_serialization=not legacy)
    file = PickledFile(path)
    assert torch.equal(file.tensor("visual.proj"), visual["visual.proj"])
    assert not sung.exists()
    torch.load(path, weights_only=False)
    assert sung.exists()  # so it would have


def test_every_opcode_that_calls_only_records(tmp_path):
    for body in (b"cos\nsystem\n(S'touch x'\ntR.", b"(S'touch x'\nios\nsystem\n.", b"(cos\nsystem\nS'x'\no."):
        made = read_pickle(io.BytesIO(body), "x")
        assert isinstance(made, Made)
        assert str(made.name) == "os.system"


def read_all(path):
    file = PickledFile(path)
    return {name: file.tensor(name) for name in file.names}


def refused(path, *words):
    with pytest.raises(CheckpointError) as caught:
        read_all(path)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9, 0.999])
def test_truncated_files_are_refused(tmp_path, visual, legacy, share):
    path = write_pickle(tmp_path / "whole.pt", visual, legacy=legacy)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    refused(path, "whole.pt")


def rewritten(path, change, compress=zipfile.ZIP_STORED):
    """The same archive with some entries changed; None drops one."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compress) as archive:
        for name, content in change(entries).items():
            archive.writestr(name, content)
    return path


def save_one(path, stride=(1,), size=(4,), offset=0):
    """A state dict with one tensor, whose description is then changed."""
    torch.save({"w": torch.arange(4.0)}, path)
    description = pickle.dumps((offset, size, stride), protocol=2)

    def change(entries):
        name = next(name for name in entries if name.endswith("data.pkl"))
        body = entries[name]
        old = b"K\x00K\x04\x85q" if b"K\x00K\x04\x85q" in body else None
        assert old, "the pickle is written in another way now"
        start = body.index(old)
        end = body.index(b"\x89", start)  # requires_grad: False
        items = pickle.loads(description)
        parts = [pickle.dumps(item, protocol=2)[2:-1] for item in items]
        # memo slots above those in use, so that later references stay right
        parts = [part.replace(b"q\x00", b"r" + struct.pack("<I", 900 + n)) for n, part in enumerate(parts)]
        used = body[start:end]
        slots = [used[i : i + 2] for i in range(len(used)) if used[i : i + 1] == b"q"]
        assert len(slots) == 2
        entries[name] = body[:start] + parts[0] + parts[1] + slots[0] + parts[2] + slots[1] + body[end:]
        return entries

    return rewritten(path, change)


def test_the_rewriting_itself_is_sound(tmp_path):
    file = PickledFile(save_one(tmp_path / "a.pt", stride=(2,), size=(2,), offset=1))
    assert file.tensor("w").tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("stride", "size", "offset"),
    [((0,), (2**40,), 0), ((2**40,), (2,), 0), ((1,), (4,), 1), ((1,), (5,), 0), ((1, 1), (4,), 0), ((-1,), (4,), 3)],
)
def test_descriptions_that_leave_the_storage_are_refused(tmp_path, stride, size, offset):
    refused(save_one(tmp_path / "a.pt", stride, size, offset), "w")


def test_archives_that_torch_never_writes_are_refused(tmp_path, visual):
    path = write_pickle(tmp_path / "a.pt", visual)
    refused(rewritten(path, dict, zipfile.ZIP_DEFLATED), "compressed")
    torch.save({"w": torch.zeros(1000)}, path)
    refused(rewritten(path, lambda entries: {n: c for n, c in entries.items() if "/data/" not in n}), "w")
    refused(rewritten(path, lambda entries: {"readme.txt": b"hello"}), "data.pkl")


def test_an_archive_with_too_many_entries_is_refused_before_it_is_parsed(tmp_path):
    path = tmp_path / "many.pt"
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 40_000_000, 0, 0)
    path.write_bytes(b"PK\x03\x04" + bytes(100) + end)
    refused(path, "entries")


@pytest.mark.parametrize("most", [0, 2])
def test_an_archive_whose_end_says_two_things_is_refused_before_it_is_parsed(tmp_path, monkeypatch, most):
    """Readers differ in which record they take: the one before the locator, or the one that it points to."""
    path = tmp_path / "many.pt"
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 3)  # more are counted in 64 bits
    with zipfile.ZipFile(path, "w") as out:
        for number in range(5):
            out.writestr(f"a/{number}", b"")
    raw = path.read_bytes()
    locator = raw.rindex(b"PK\x06\x07")
    record = raw[locator - 56 : locator]
    with path.open("rb") as file:
        assert contents_of(file) == (5, struct.unpack("<Q", record[40:48])[0])
    lie = record[:24] + struct.pack("<QQQ", most, most, 50) + record[48:]
    path.write_bytes(lie + raw[: locator + 8] + struct.pack("<Q", 0) + raw[locator + 16 :])
    with path.open("rb") as file:
        assert contents_of(file) is None
    refused(path, "table of contents")
    path.write_bytes(raw[: locator - 56] + bytes(56) + raw[locator:])
    refused(path, "table of contents")


def deep(levels):
    """A pickled module that holds itself as its child ``levels`` times, or for ever."""
    body = b"\x80\x02" + b"csrc.modeling\nDeep\n)\x81q\x00"
    return body + b"}q\x01X\x08\x00\x00\x00_modulesq\x02}q\x03X\x01\x00\x00\x00aq\x04h\x00ssb."


def test_what_is_named_again_and_again_is_not_copied_as_often(tmp_path):
    """Few bytes would ask for terabytes: a list that is written once is named in a million calls."""
    path = tmp_path / "bomb.pt"

    def refused_early(shared, again):
        with zipfile.ZipFile(path, "w") as out:
            out.writestr("a/data.pkl", b"\x80\x02" + shared + again * 5_000 + b".")
        refused(path, "1,000,000 entries copied")

    numbers = [b"J" + struct.pack("<i", number) for number in range(5_000)]
    for name in ("set", "frozenset"):
        body = f"cbuiltins\n{name}\nq\x00".encode() + b"](" + b"".join(numbers) + b"e\x85q\x01"
        refused_early(body, b"h\x00h\x01R")
    pairs = b"](" + b"".join(number + b"N\x86" for number in numbers) + b"e\x85q\x01"
    for name in (b"builtins\ndict", b"collections\nOrderedDict"):
        refused_early(b"c" + name + b"\nq\x00" + pairs, b"h\x00h\x01R")
    table = b"}(" + b"".join(number + b"N" for number in numbers) + b"u"
    refused_early(b"ca\nB\nq\x00" + table + b"2\x86q\x01", b"h\x00)\x81h\x01b")


@pytest.mark.slow
def test_bombs_end_early(tmp_path):
    path = tmp_path / "bomb.pt"

    def archive(body):
        with zipfile.ZipFile(path, "w") as out:
            out.writestr("a/data.pkl", body)
        return path

    nested = b"\x80\x02" + b")" + b"\x85" * 390_000 + b"."
    started = time.process_time()
    refused(archive(nested), "tensors")
    refused(archive(b"\x80\x02" + b"N" * 410_000 + b"."), "instructions")
    refused(archive(b"\x80\x02r\xff\xff\xff\xffN."), "damaged")  # a memo slot far out
    refused(archive(b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"x."), "damaged")
    refused(archive(deep(1)), "deep")
    refused(archive(b"\x80\x02\x82\x01."), "EXT1")
    # Keys whose hash would overflow the stack, or take 2**60 steps, in Python's own unpickler.
    refused(archive(b"\x80\x02})" + b"\x85" * 390_000 + b"Ns."), "tensors")
    refused(archive(b"\x80\x02})" + b"2\x86" * 60 + b"Ns."), "tensors")
    assert time.process_time() - started < 30


@pytest.mark.parametrize(
    ("kind", "tensor"),
    [
        ("sparse tensor", torch.eye(3).to_sparse()),
        ("tensor v3 of torch.float8_e4m3fn", torch.ones(3).to(torch.float8_e4m3fn)),
        ("view that is not resolved", torch._neg_view(torch.ones(3))),
    ],
)
def test_tensors_that_are_not_read_are_named_with_their_kind(tmp_path, kind, tensor):
    torch.save({"epoch": 3, "plain": torch.ones(2), "other": tensor}, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", f"other is a {kind}")


def test_a_name_of_thousands_of_digits_is_refused(tmp_path):
    tensors = {f"visual.transformer.resblocks.{'9' * 5000}.x": torch.ones(2)}
    torch.save(tensors, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", "5,031 characters")
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match="5,031 characters"):
        SafetensorsFile(tmp_path / "a.safetensors")


def test_a_file_that_changes_or_goes_is_told(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"a": torch.ones(2)}, path)
    file, before = PickledFile(path), path.stat()
    torch.save({"a": torch.zeros(2)}, tmp_path / "b.pt")
    os.utime(tmp_path / "b.pt", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tmp_path / "b.pt").replace(path)
    with pytest.raises(CheckpointError, match="was changed"):
        file.tensor("a")
    path.unlink()
    with pytest.raises(CheckpointError, match="no weights file"):
        file.tensor("a")


def test_heads_keep_their_settings(tmp_path):
    path = write_head(tmp_path / "head_Cars.pt", torch.randn(5, 16))
    file = PickledFile(path)
    assert file.names == ("weight", "bias")
    assert file.settings["normalize"] is True


def test_what_is_no_torch_file_is_told_apart(tmp_path, visual):
    from safetensors.torch import save_file

    save_file(visual, tmp_path / "a.safetensors")
    assert not is_torch_file(tmp_path / "a.safetensors")
    assert is_torch_file(write_pickle(tmp_path / "a.pt", visual))
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"a": 1}))
    refused(tmp_path / "plain.pkl", "torch.save")
