"""Images and labels in every form, and a folder of them that becomes a zoo."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

from engine.manifest import Preprocess, Task
from engine.pipeline.zoos.new import NewZooOptions, new_zoo
from engine.zoo.images.data import open_task
from engine.zoo.images.thumbnails import thumbnails
from tests.fuzz import containers, documents
from tests.fuzz.bytes_ import damage
from tests.image_files import write_folders, write_parquet, write_zip
from tests.tiny_zoo import CLASSES, make_zoo, write_task

FIT = Preprocess(size=16, mean=(0.5, 0.5, 0.5), std=(0.3, 0.3, 0.3))


def rewrite(path, change) -> None:
    path.write_bytes(change(path.read_bytes()))


def npz(folder: Path) -> None:
    write_task(folder / "data.npz", 0, 6)


def spoil_npz(folder: Path, rng: Random, canary: str) -> None:
    kind = rng.random()
    if kind < 0.4:
        rewrite(folder / "data.npz", lambda data: damage(data, rng))
    elif kind < 0.8:
        rewrite(folder / "data.npz", lambda data: containers.changed_npz(data, rng, canary))
    else:
        rewrite(folder / "data.npz", lambda data: containers.changed_zip(data, rng))


def read_images(folder: Path, name: str = "data.npz") -> None:
    task = Task(name="made", domain="in", data=name, classes=CLASSES)
    data = open_task(folder, task)
    for split in ("test", "adapt", "val", "train"):
        if not data.has(split):
            continue
        if split != "adapt":
            data.labels(split)
        thumbnails(folder, task, split=split)
        data.samples(split)


def described(folder: Path) -> None:
    make_zoo(folder / "tiny", experts=("alpha", "beta"), images=6)
    (folder / "images").mkdir()
    with np.load(folder / "tiny" / "data" / "alpha.npz") as arrays:
        np.savez(folder / "images" / "made.npz", **arrays, train_x=arrays["test_x"], train_y=arrays["test_y"])
    description = {"class_names": list(CLASSES), "suggested": "ID", "licence": "none", "templates": ["a {}"]}
    (folder / "images" / "made.json").write_text(json.dumps(description))


def spoil_described(folder: Path, rng: Random, canary: str) -> None:
    path = folder / "images" / rng.choice(("made.json", "made.json", "made.npz"))
    if path.suffix == ".json" and rng.random() < 0.7:
        path.write_bytes(documents.changed_json(path.read_text(), rng).encode("utf-8", "surrogatepass"))
    elif path.suffix == ".npz" and rng.random() < 0.7:
        rewrite(path, lambda data: containers.changed_npz(data, rng, canary))
    else:
        rewrite(path, lambda data: damage(data, rng))


def read_described(folder: Path) -> None:
    try:
        new_zoo(folder / "new", str(folder / "tiny"), folder / "images", NewZooOptions("prototypes"))
    finally:
        left = [path.name for path in folder.iterdir() if path.name not in ("tiny", "images", "new")]
        assert not left, f"half-written: {left}"
        assert (folder / "new" / "heads.safetensors").is_file() or not (folder / "new").exists()


FORMS = ("folders", "pictures.zip", "table.csv", "shards")


def forms(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    write_folders(folder / "folders", 2)
    write_zip(folder / "pictures.zip", 2)
    write_parquet(folder / "shards" / "test-00000-of-00001.parquet", [0, 1, 2, 0, 1, 2])
    rows = [f"folders/{name}/{file},{name},test" for name in CLASSES for file in ("1.png", "0.jpg")]
    (folder / "table.csv").write_text("path,label,split\n" + "\n".join(rows) + "\n")


def spoil_forms(folder: Path, rng: Random, canary: str) -> None:
    """Spoil one form; the others go away, so that the reader finds the one."""
    form = rng.choice(FORMS)
    if form == "folders":
        spoil_folders(folder / form, rng)
    elif form == "table.csv":
        path = folder / form
        text = path.read_text()
        lines = (
            "../../etc/passwd,star,test",
            "/etc/passwd,star",
            "folders,star,test",
            "a\0b,star",
            '"',
            "x" * 200_000,
            ",,,",
            "=1+1,star",
        )
        rewrite(
            path, lambda data: damage(data, rng) if rng.random() < 0.5 else (text + rng.choice(lines) + "\n").encode()
        )
    else:
        path = folder / form if form.endswith("zip") else next((folder / form).iterdir())
        structured = form.endswith("zip") and rng.random() < 0.5
        rewrite(path, lambda data: containers.changed_zip(data, rng) if structured else damage(data, rng))
    (folder / "form").write_text(form)


def spoil_folders(folder: Path, rng: Random) -> None:
    path = rng.choice(sorted(folder.rglob("*.*")))
    kind = rng.randrange(6)
    if kind == 0:
        path.unlink()
        path.symlink_to(rng.choice(("/etc/passwd", "../..", path.name)))
    elif kind == 1:
        (path.parent / "more").mkdir()
        (path.parent / "more" / path.name).write_bytes(path.read_bytes())
    elif kind == 2:
        path.write_bytes(bomb())
    elif kind == 3:
        (
            folder
            / rng.choice(("", "circle"))
            / rng.choice(("x" * 200 + ".png", "\u202e.png", ".hidden.png", "a b.PNG"))
        ).write_bytes(b"")
    else:
        rewrite(path, lambda data: damage(data, rng))


def bomb() -> bytes:
    """A PNG of 60,000 × 60,000 that is nearly empty."""
    buffer = io.BytesIO()
    Image.new("1", (8, 8)).save(buffer, "PNG")
    data = bytearray(buffer.getvalue())
    data[16:24] = struct.pack(">II", 60_000, 60_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


def read_forms(folder: Path) -> None:
    place = folder / "form"
    for form in (place.read_text(),) if place.exists() else FORMS:
        task = Task(name="made", domain="in", data=form, classes=CLASSES)
        data = open_task(folder, task)
        for split in data.lengths:
            if split != "adapt":
                data.labels(split)
            list(data.pictures(split, range(data.lengths[split]), 48))
            data.samples(split, fit=FIT)[:4]


def brought(folder: Path) -> None:
    make_zoo(folder / "tiny", experts=("alpha", "beta"), images=6)
    (folder / "images").mkdir()
    forms(folder / "images")


def spoil_brought(folder: Path, rng: Random, canary: str) -> None:
    """Spoil one form; half of the time its images are asked for alone."""
    spoil_forms(folder / "images", rng, canary)
    (folder / "images" / "form").replace(folder / "form")
    (folder / "how").write_text(rng.choice(("skip", "stop")) + " " + rng.choice(("all", "one")))


def read_brought(folder: Path) -> None:
    how = (folder / "how").read_text() if (folder / "how").exists() else "stop all"
    place = folder / "images"
    if how.endswith("one"):
        place = place / (folder / "form").read_text()
    try:
        new_zoo(
            folder / "new", str(folder / "tiny"), place, NewZooOptions("prototypes", (), 0.5, 0, how.startswith("skip"))
        )
    finally:
        left = {path.name for path in folder.iterdir()} - {"tiny", "images", "new", "form", "how"}
        assert not left, f"half-written: {left}"
        assert (folder / "new" / "heads.safetensors").is_file() or not (folder / "new").exists()


TARGETS = {
    "npz": (npz, spoil_npz, read_images),
    "new_zoo": (described, spoil_described, read_described),
    "image_forms": (forms, spoil_forms, read_forms),
    "brought": (brought, spoil_brought, read_brought),
}
