"""Checkpoints in other people's formats: whole pickled modules, Hugging Face folders, adapters, and their survey."""

from __future__ import annotations

from pathlib import Path
from random import Random

from engine.weights import PickledFile
from engine.zoo.importing.request import parse_request
from engine.zoo.importing.survey import survey
from tests.fuzz import containers, documents
from tests.fuzz.bytes_ import damage
from tests.made_checkpoints import clip, visual_of, write_hf, write_pickle


def rewrite(path, change) -> None:
    path.write_bytes(change(path.read_bytes()))


def modules(folder: Path) -> None:
    write_pickle(folder / "zip.pt", visual_of(clip()))
    write_pickle(folder / "stream.pt", visual_of(clip()), legacy=True)


def spoil_modules(folder: Path, rng: Random, canary: str) -> None:
    path = folder / rng.choice(("zip.pt", "stream.pt"))
    kind = rng.random()
    if kind < 0.15:
        path.write_bytes(containers.plain_pickle(rng, canary))
    elif kind < 0.35 and path.name == "zip.pt":
        rewrite(path, lambda data: containers.with_pickle(data, rng, canary))
    elif kind < 0.5 and path.name == "zip.pt":
        rewrite(path, lambda data: containers.changed_zip(data, rng))
    elif kind < 0.75:  # the pickle is a small part of the file, so that damage would seldom meet it
        rewrite(path, lambda data: damage(data[:4000], rng) + data[4000:])
    else:
        rewrite(path, lambda data: damage(data, rng))
    path.replace(folder / "read.pt")


def read_module(folder: Path) -> None:
    file = PickledFile(folder / "read.pt")
    for name in file.names:
        file.tensor(name)


def hugging_face(folder: Path) -> None:
    visual = visual_of(clip())
    write_hf(folder / "base", visual)
    write_hf(folder / "expert", visual, binary=True, shards=2)


def spoil_hugging_face(folder: Path, rng: Random, canary: str) -> None:
    place = folder / rng.choice(("base", "expert"))
    path = rng.choice(sorted(place.iterdir()))
    if path.suffix == ".json" and rng.random() < 0.8:
        path.write_bytes(documents.changed_json(path.read_text(), rng).encode("utf-8", "surrogatepass"))
    elif path.suffix == ".safetensors" and rng.random() < 0.6:
        rewrite(path, lambda data: containers.changed_safetensors(data, rng))
    elif path.suffix == ".bin" and rng.random() < 0.4:
        rewrite(path, lambda data: containers.with_pickle(data, rng, canary))
    elif rng.random() < 0.1:
        path.unlink()
        path.symlink_to("/etc/passwd")
    else:
        rewrite(path, lambda data: damage(data, rng))


def read_hugging_face(folder: Path) -> None:
    document = {"base": str(folder / "base"), "experts": [{"path": str(folder / "expert")}], "name": "made"}
    document["preprocess"] = "openai"
    found = survey(parse_request({**document, "out": str(folder / "out")}), lambda fraction, message="": None)
    for fault in (one.text for one in found.faults):
        assert 8 < len(fault) < 5000, f"the message has {len(fault)} characters: {fault[:300]}"
    found.to_json()


TARGETS = {
    "modules": (modules, spoil_modules, read_module),
    "hugging_face": (hugging_face, spoil_hugging_face, read_hugging_face),
}
