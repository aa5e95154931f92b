"""Changes that know the container: safetensors headers, zip entries, pickles that would run code."""

from __future__ import annotations

import io
import json
import os
import pickle
import stat
import struct
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from .documents import change, json_text, strange

NAMES = (
    "../evil.txt",
    "/tmp/evil.txt",
    "a/../../evil",
    "..\\evil",
    "C:\\evil",
    "",
    ".",
    "a\0b",
    "x" * 60_000,
    "circle/../../x.png",
    "é\u202e.png",
    "data.pkl",
    "archive/data.pkl",
    "con.png",
)
FLOODED = 64 * 2**20  # bytes that a bomb unpacks to
DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I8", "BOOL", "F8_E4M3", "F4", "", "f32", None, 7)


def changed_safetensors(data: bytes, rng: Random) -> bytes:
    """Edit the header and put the file together again, with the old values behind it."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    names = [name for name in header if name != "__metadata__"]
    for _ in range(rng.choice((1, 1, 2))):
        entry = header[rng.choice(names)]
        action = rng.randrange(8)
        if action == 0:
            entry["dtype"] = rng.choice(DTYPES)
        elif action == 1:
            entry["shape"] = rng.choice(
                ([2**40, 2**40], [-1], [0], [], [1] * 100, [2**63], "8", [1.5], [True], entry["shape"][::-1])
            )
        elif action == 2:
            entry["data_offsets"] = rng.choice(
                ([0, 2**63], [-8, 0], [8, 0], [0], [], [0, 0], "01", [0, 1.5], [1, 10**30])
            )
        elif action == 3:
            header[rng.choice(("x", "", "visual.proj", "visual.../..", "a" * 100_000, "visual.\0"))] = dict(entry)
        elif action == 4:
            header["__metadata__"] = strange(rng, {"a": 1})
        elif action == 5:
            header = change(header, rng)
            break
        elif action == 6:
            del header[rng.choice([name for name in names if name in header] or [next(iter(header))])]
            break
        else:
            entry["data_offsets"] = header[rng.choice(names)]["data_offsets"]
    text = json_text(header, rng).encode("utf-8", "surrogatepass")
    length = (
        len(text) if rng.random() < 0.8 else rng.choice((0, 1, len(text) + 1, len(text) - 1, 2**31, 2**63, 2**64 - 1))
    )
    return struct.pack("<Q", length) + text + data[8 + struct.unpack("<Q", data[:8])[0] :]


def changed_zip(data: bytes, rng: Random) -> bytes:
    """Pack the entries again with something added, doubled, renamed, linked or blown up."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = [(info.filename, archive.read(info)) for info in archive.infolist()]
    action = rng.randrange(8)
    compression = zipfile.ZIP_DEFLATED if action in (0, 1) else zipfile.ZIP_STORED
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for number, (name, content) in enumerate(entries):
            if action == 2 and number == rng.randrange(len(entries)):
                name = rng.choice(NAMES)
            if action == 3 and rng.random() < 0.3:
                continue
            archive.writestr(zipfile.ZipInfo(name), content, compression)
        name, content = rng.choice(entries)
        if action == 0:
            archive.writestr(
                name if rng.random() < 0.5 else f"{Path(name).parent}/bomb.png", bytes(FLOODED), compression
            )
        elif action == 4:
            archive.writestr(zipfile.ZipInfo(name), rng.choice(entries)[1])
        elif action == 5:
            link = zipfile.ZipInfo(f"{Path(name).parent}/link{Path(name).suffix}")
            link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, rng.choice(("/etc/passwd", "../../../secret", name)))
        elif action == 6:
            for number in range(rng.choice((10, 3000))):
                archive.writestr(zipfile.ZipInfo(f"n{number}/{number}.png"), b"")
        elif action == 7:
            archive.writestr(zipfile.ZipInfo(rng.choice(NAMES[:5])), content)
    return out.getvalue()


class Payload:
    """Unpickled the ordinary way, it makes a folder."""

    def __init__(self, canary: str) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.canary,)


def opcodes(rng: Random, canary: str) -> bytes:
    """A pickle written by hand: calls, endless memos, impossible lengths, stacks without marks."""
    call = b"cos\nmkdir\n(V" + canary.encode() + b"\ntR."
    return rng.choice(
        (
            call,
            b"\x80\x02" + call,
            b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93\x8c" + bytes([len(canary)]) + canary.encode() + b"\x85R.",
            b"(ios\nmkdir\n(V" + canary.encode() + b"\n.",
            b"(cos\nmkdir\nV" + canary.encode() + b"\no.",
            b"\x80\x02]q\x00" + b"h\x00a" * 1000 + b".",
            b"\x80\x04\x8e" + struct.pack("<Q", 2**62),
            b"\x80\x04B" + struct.pack("<I", 2**31),
            b"\x80\x02r" + struct.pack("<I", 2**31) + b".",
            b"(" * 5000 + b".",
            b"]" + b"]a" * 5000 + b".",
            b"(((lp0\n" * 500,
            b"t.",
            b"R.",
            b"b.",
            b".",
            b"0",
            b"\x80\xff.",
            b"\x80\x02}(",
            b"I" + b"9" * 9000 + b"\n.",
            b"L" + b"9" * 9000 + b"L\n.",
            b"\x80\x02\x8b" + struct.pack("<I", 2**31),
            b"F1e999\n.",
            b"\x80\x05\x96" + struct.pack("<Q", 2**40),
            b"(dp0\nS'a'\ng0\ns.",
            b"P0\n.",
            b"\x80\x02\x82\x01.",
            b"\x80\x02]" + b"2" * 5000 + b"e.",
            b"\x80\x02" + b"]q\x00(h\x00h\x00e" * 30 + b".",
        )
    )


def changed_torch(rng: Random, canary: str, tensors: dict[str, torch.Tensor], path: Path) -> None:
    """A torch file that holds more, less or something other than a table of tensors."""
    action = rng.randrange(7)
    content: Any = dict(tensors)
    name = rng.choice(list(content))
    if action == 0:
        content["extra"] = Payload(canary)
    elif action == 1:
        content = {
            rng.choice(("state_dict", "model", "x", 7)): content,
            "epoch": rng.choice((3, None, Payload(canary))),
        }
    elif action == 2:
        content[name] = rng.choice(
            (None, 3, "x", [1], torch.zeros(3, dtype=torch.complex64), torch.zeros(2).to_sparse(), Payload(canary))
        )
    elif action == 3:
        content[name] = torch.zeros(1).expand(10**6, 10**6) if rng.random() < 0.5 else torch.zeros(1).expand(7, 3)
    elif action == 4:
        content = rng.choice((list(tensors.values()), tensors[name], None, 7, {}, Payload(canary)))
    elif action == 5:
        for key in list(content):
            content[rng.choice((7, "", "a\0b", f"model.{key}", f"module.{key}", key))] = content.pop(key)
    else:
        content[name] = content[name].to(rng.choice((torch.float64, torch.int64, torch.bool, torch.bfloat16)))
    torch.save(content, path, _use_new_zipfile_serialization=rng.random() < 0.7)


def with_pickle(data: bytes, rng: Random, canary: str) -> bytes:
    """A torch archive whose pickle was replaced."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = [(info.filename, archive.read(info)) for info in archive.infolist()]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in entries:
            archive.writestr(name, opcodes(rng, canary) if name.endswith("data.pkl") else content)
    return out.getvalue()


def changed_npz(data: bytes, rng: Random, canary: str) -> bytes:
    """Arrays of other shapes and dtypes, headers that lie, objects."""
    with np.load(io.BytesIO(data)) as file:
        arrays = dict(file)
    name = rng.choice(list(arrays))
    array, action = arrays[name], rng.randrange(8)
    if action == 0:
        arrays[name] = array.astype(
            rng.choice(("float32", "int64", "bool", "complex64", "U3", "S2", ">u2", "datetime64[s]"))
        )
    elif action == 1:
        arrays[name] = array.reshape(-1) if rng.random() < 0.5 else array[None]
    elif action == 2:
        arrays[name] = array[: rng.choice((0, 1, len(array) // 2))]
    elif action == 3:
        arrays[name] = np.array([Payload(canary)], dtype=object)
    elif action == 4:
        del arrays[name]
    elif action == 5:
        arrays[name] = array + 200 if array.ndim == 1 else np.asfortranarray(array)
    elif action == 6:
        arrays[rng.choice(("val_x", "adapt_x", "test_x", "../x", "train_y"))] = array
    out = io.BytesIO()
    np.savez(out, **arrays)
    if action != 7:
        return out.getvalue()
    shape = rng.choice(
        ("(10000000000, 16, 16, 3)", "(-1,)", "(1,)", "()", "(2.5,)", "'x'", "(" * 200, "9" * 5000 + ",")
    )
    dtype = rng.choice((repr("|u1"), repr("|O"), repr("<i8"), "7", "[]"))
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    lie = (
        b"\x93NUMPY"
        + bytes([rng.choice((1, 2, 3, 9)), 0])
        + struct.pack("<H", rng.choice((len(header), 65535)))
        + header
        + bytes(100)
    )
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("test_x.npy" if rng.random() < 0.5 else "val_x.npy", lie)
    return out.getvalue()


def plain_pickle(rng: Random, canary: str) -> bytes:
    return pickle.dumps(Payload(canary)) if rng.random() < 0.3 else opcodes(rng, canary)
