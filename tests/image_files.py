"""True files of every form that images come in, made in milliseconds."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

COLOURS = {"circle": (200, 40, 40), "square": (40, 200, 40), "star": (40, 40, 200)}
CLASSES = tuple(COLOURS)


def picture(label: int, number: int = 0, size: tuple[int, int] = (24, 16)) -> Image.Image:
    """One colour a class, a little noise of the number."""
    colour = np.array(list(COLOURS.values())[label])
    noise = np.random.default_rng([label, number]).integers(-20, 20, size=(size[1], size[0], 3))
    return Image.fromarray(np.clip(colour + noise, 0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def write_folders(folder: Path, each: int = 4, splits: tuple[str, ...] = ()) -> Path:
    """``CLASS/n.png``, or ``SPLIT/CLASS/n.png``."""
    for split in splits or ("",):
        for label, name in enumerate(CLASSES):
            place = folder / split / name
            place.mkdir(parents=True, exist_ok=True)
            for number in range(each):
                kind = ("png", "PNG") if number % 2 else ("jpg", "JPEG")
                (place / f"{number}.{kind[0]}").write_bytes(encoded(picture(label, number), kind[1]))
    return folder


def write_class_folders(folder: Path, *names: str, each: int = 4) -> Path:
    """``NAME/n.png`` for each name, which may be a path."""
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(each):
            (folder / name / f"{number}.png").write_bytes(encoded(picture(number % 3, number)))
    return folder


def write_zip(path: Path, each: int = 4, classes: tuple[str, ...] = CLASSES) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for label, name in enumerate(classes):
            for number in range(each):
                archive.writestr(f"pictures/{name}/{number}.png", encoded(picture(label, number)))
    return path


def write_parquet(
    path: Path, labels: list[int], *, names: tuple[str, ...] = CLASSES, plain: bool = False, group: int = 5
) -> Path:
    """One shard as Hugging Face's library writes it."""
    images = [encoded(picture(label % 3, number)) for number, label in enumerate(labels)]
    if plain:
        column = pa.array(images, pa.binary())
    else:
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        column = pa.array([{"bytes": image, "path": f"{n}.png"} for n, image in enumerate(images)], kind)
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": list(names)}}
    schema = pa.schema(
        [("image", column.type), ("label", pa.int64())],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table([column, pa.array(labels, pa.int64())], schema=schema), path, row_group_size=group)
    return path


def write_table(folder: Path, each: int = 4) -> Path:
    """``list.csv`` of paths and labels, beside the class folders that it lists."""
    place = write_folders(folder / "listed", each)
    lines = [f"{file.relative_to(folder).as_posix()},{file.parent.name}" for file in sorted(place.rglob("*.*"))]
    (folder / "list.csv").write_text("path,label\n" + "\n".join(lines))
    return folder / "list.csv"


def write_mnist(root: Path, count: int = 12) -> Path:
    """MNIST's own IDX files, as torchvision leaves them."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, many in (("t10k", count), ("train", 2 * count)):
        labels = np.arange(many, dtype=np.uint8) % 10
        pixels = np.repeat(labels * 20, 28 * 28).astype(np.uint8)
        header = struct.pack(">IIII", 2051, many, 28, 28)
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, many) + labels.tobytes())
    return root
